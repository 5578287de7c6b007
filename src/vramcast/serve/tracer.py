"""A process that traces jobs for the page. It is ended when nobody waits for its work any more."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from vramcast.base.access import limited
from vramcast.base.errors import CannotPredict, UsageError, VramcastError
from vramcast.base.sealing import sealed
from vramcast.features.advise.result import Suggestion
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.serve.sources import Sources
from vramcast.serve.state import PageState

_POLL_SECONDS = 0.05
LONGEST_SECONDS = 300.0


class Stopped(VramcastError):
    """Nobody waits for the result any more."""


class Tracer:
    """One at a time: the virtual card is its process's only one."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._process: Any = None
        self._connection: Connection | None = None

    def trace(
        self, state: PageState, stop: threading.Event, progress: Callable[[str], None] = lambda text: None
    ) -> JobPrediction:
        found: JobPrediction = self._ask("predict", state, stop, progress)
        return found

    def changes(self, state: PageState, stop: threading.Event) -> tuple[Suggestion, ...]:
        """What makes it fit; nothing where it does."""
        found: tuple[Suggestion, ...] = self._ask("advise", state, stop, lambda text: None)
        return found

    def _ask(self, what: str, state: PageState, stop: threading.Event, progress: Callable[[str], None]) -> Any:
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            if stop.is_set():
                raise Stopped("stopped")
        try:
            return self._answer(what, state, stop, progress)
        finally:
            self._lock.release()

    def _answer(self, what: str, state: PageState, stop: threading.Event, progress: Callable[[str], None]) -> Any:
        if stop.is_set():
            raise Stopped("stopped")
        connection = self._started()
        connection.send((what, state))
        waited = 0.0
        while True:
            try:
                if connection.poll(_POLL_SECONDS):
                    kind, value = connection.recv()
                    if kind == "progress":
                        progress(value)
                        continue
                    if isinstance(value, VramcastError):
                        raise value
                    return value
            except (EOFError, ConnectionError):
                self.close()
                raise CannotPredict("the process that traces has ended: perhaps out of memory") from None
            waited += _POLL_SECONDS
            if stop.is_set():
                self.close()
                raise Stopped("stopped")
            if waited > LONGEST_SECONDS:
                self.close()
                raise UsageError(f"stopped after {LONGEST_SECONDS:.0f} s; use `vramcast predict` for a job this large")

    def _started(self) -> Connection:
        if self._connection is None or not self._process.is_alive():
            # Not a fork: this process has threads.
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            arguments = (theirs, self._sources, os.getpid())
            self._process = context.Process(target=_work, args=arguments, daemon=True, name="vramcast tracer")
            self._process.start()
            theirs.close()
        return self._connection

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def answer(what: str, sources: Sources, state: PageState, progress: Callable[[str], None]) -> Any:
    """Call it with the limits in force."""
    from vramcast.features.advise.first_changes import predict_and_change
    from vramcast.prediction.predict import predict
    from vramcast.prediction.ranks import predict_distinct_ranks

    loaded, limit = sources.load(state), state.limit or None
    if what == "predict" and loaded.job.gpus.pipeline > 1:
        return predict_distinct_ranks(loaded, state.gpu, limit, progress=progress)[0]
    if what == "predict":
        return predict(loaded, state.gpu, limit, progress=progress)
    return predict_and_change(loaded, state.gpu, limit, 3, None, 1, progress)[1]


def _work(connection: Connection, sources: Sources, parent: int) -> None:
    os.chdir(sources.root)
    tempfile.gettempdir()  # found by writing to it, which a sealed job may not
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    while os.getppid() == parent:
        try:
            what, state = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        limits = sources.limits(state)
        try:
            with limited(limits), sealed(on=not limits.allow_code):
                found: Any = answer(what, sources, state, lambda text: connection.send(("progress", text)))
        except VramcastError as error:
            error.__traceback__ = error.__cause__ = error.__context__ = None
            found = error
        except MemoryError:
            found = CannotPredict("this computer has too little memory to trace it")
        connection.send(("done", found))
