"""Run a function on many tasks, each in a fork of this process, a few at a time.

The parent does the heavy imports once; a child starts with them, keeps its memory to itself, and cannot spoil the
next one. Works on machines that can fork; the parent must not have touched CUDA.
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What a child gave back: a value, or the reason why there is none."""

    value: Any
    error: str
    seconds: float
    """Time of the function alone: no fork, no imports."""
    peak_rss_bytes: int
    """Highest resident memory of the child, the parent's imports included."""


@dataclass
class _Child(Generic[T]):
    task: T
    pid: int
    pipe: int
    started: float
    received: bytes = b""


def run_each(
    work: Callable[[T], Any],
    tasks: Iterable[T],
    *,
    jobs: int = 2,
    timeout_seconds: float = 120.0,
    threads: int = 1,
    weight: Callable[[T], float] = lambda task: 0.0,
    budget: float = 0.0,
) -> Iterator[tuple[T, Outcome]]:
    """Yield (task, outcome) as children finish. An exception, a timeout or a crash becomes an outcome's error.

    Of the tasks that wait, the first is started whose weight goes into the budget beside those that run.
    """
    waiting = list(tasks)
    running: dict[int, _Child[T]] = {}
    try:
        while waiting or running:
            while len(running) < jobs:
                free = budget - sum(weight(child.task) for child in running.values())
                chosen = next((n for n, task in enumerate(waiting) if weight(task) <= free or not running), None)
                if chosen is None:
                    break
                child = _start(work, waiting.pop(chosen), threads)
                running[child.pipe] = child
            ready, _, _ = select.select(list(running), [], [], 0.2)
            for pipe in ready:
                child = running[pipe]
                chunk = os.read(pipe, 1 << 16)
                child.received += chunk
                if not chunk:
                    del running[pipe]
                    yield child.task, _finish(child, "the process died")
            for child in list(running.values()):
                if time.monotonic() - child.started > timeout_seconds:
                    os.kill(child.pid, signal.SIGKILL)
                    del running[child.pipe]
                    yield child.task, _finish(child, f"stopped after {timeout_seconds:g} s")
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            _finish(child, "")


def _start(work: Callable[[T], Any], task: T, threads: int) -> _Child[T]:
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return _Child(task, pid, read_end, time.monotonic())
    os.close(read_end)
    try:
        _silence()
        outcome = _run(work, task, threads)
        with os.fdopen(write_end, "wb") as stream:
            pickle.dump(outcome, stream)
    finally:
        os._exit(0)  # no clean-up of what belongs to the parent


def _silence() -> None:
    """Warnings of libraries, once for every child, would bury the table."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _run(work: Callable[[T], Any], task: T, threads: int) -> Outcome:
    import torch

    torch.set_num_threads(threads)
    value, error = None, ""
    started = time.perf_counter()
    try:
        value = work(task)
    except BaseException as caught:
        place = traceback.extract_tb(caught.__traceback__)[-1]
        error = f"{type(caught).__name__}: {caught} ({place.filename.rpartition('/')[2]}:{place.lineno})"
    seconds = time.perf_counter() - started
    return Outcome(value, error, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _finish(child: _Child[Any], why_dead: str) -> Outcome:
    os.close(child.pipe)
    os.waitpid(child.pid, 0)
    try:
        outcome = pickle.loads(child.received)
    except Exception:
        return Outcome(None, why_dead, time.monotonic() - child.started, 0)
    assert isinstance(outcome, Outcome)
    return outcome
