"""Processes that a script starts while it runs on a virtual card.

A process that Python forks has the card too, with an account of its own; when it ends it answers with its trace, and
what is reported is the process that takes most, with the others beside it on the card. `spawn` and `forkserver` are
forks here: a new interpreter would know nothing of the card. Programs that are started otherwise run as they are,
cannot see a real card, and are named in the report.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import multiprocessing.context
import multiprocessing.process
import os
import pickle
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import util
from multiprocessing.synchronize import SemLock
from typing import TYPE_CHECKING, Any

import torch

from vramcast.base.errors import CannotPredict
from vramcast.base.processes import (
    below,
    children_of,
    end_with_parent,
    ending_with_this,
    seconds_of_work,
    wait_until_idle,
)
from vramcast.base.units import format_gib
from vramcast.card.dispatch.failures import assumptions, failure_of
from vramcast.card.dispatch.unknown import own_line
from vramcast.scripts import nvidia_smi, nvml, spawned
from vramcast.scripts.started_commands import asks_nvidia_smi, asks_terminal_size, command_for, may_train, words_of
from vramcast.trace import StepTrace

if TYPE_CHECKING:
    from vramcast.card.device.context import VirtualGpu
    from vramcast.card.device.patches import Patches

_SECONDS_TO_ANSWER = 10.0
"""A process that is ended with the script may take that long to write down what it has taken."""

_BAD_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)

FITS, MEMORY, CANNOT, FAILED = "fits", "memory", "cannot", "failed"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a process says of itself: when it first uses the card, and when it ends."""

    pid: int
    where: str
    """The line of the script that started it."""
    began: float
    ended: float | None = None
    outcome: str = FITS
    message: str = ""
    steps: int = 0
    trace: StepTrace | None = None


class Children:
    """The child processes of one run. In a process that was forked `in_child` is true, and only `end_child` is of
    use."""

    def __init__(self, card: VirtualGpu, stop: Callable[[], None], before_answer: Callable[[bool], None]) -> None:
        self._card = card
        self._stop = stop
        self._before_answer = before_answer
        self._answers = _anonymous_file()
        self._process = os.getpid()
        self._before = set(children_of(self._process))
        self._finalizers_before = set(util._finalizer_registry)  # type: ignore[attr-defined]
        self._spawning = threading.local()
        self._forking = ("", False, False)
        self._failure: BaseException | None = None
        self._cannot: CannotPredict | None = None
        self.in_child = False
        self._used = self._is_bad_fork = False
        self._began = 0.0
        self._programs: list[tuple[str, list[str]]] = []
        self.used_the_card = False
        """Whether any of them has used it."""

    def install(self, put: Patches) -> None:
        put.set(sys.modules[__name__], "_current", self)
        for kind in (multiprocessing.context.SpawnProcess, multiprocessing.context.ForkServerProcess):
            put.set(kind, "_Popen", staticmethod(self._fork_instead))
        process = multiprocessing.process.BaseProcess
        put.set(process, "_bootstrap", self._guarding(process._bootstrap))  # type: ignore[attr-defined]
        popen: Any = subprocess.Popen
        put.set(popen, "_execute_child", self._starting(popen._execute_child))
        put.set(os, "system", _system)
        nvml.install(put, self._card.gpu, torch.cuda.device_count, self._used_bytes)
        for name in ("execv", "execve"):
            put.set(os, name, self._replacing(getattr(os, name)))

    # -- in the process that forks --------------------------------------------------------------------------

    def before_fork(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self._forking = (own_line(), getattr(self._spawning, "on", False), in_main)
        _ANSWER_LOCK.acquire()

    def after_fork(self) -> None:
        _ANSWER_LOCK.release()

    def _fork_instead(self, process: Any) -> Any:
        self._spawning.on = True
        try:
            return spawned.Popen(process)
        finally:
            self._spawning.on = False

    def have_ended_the_script(self) -> bool:
        """Whether the processes that used the card have shown what they take, or one has shown that it cannot be
        predicted."""
        answers = self._last_answers()
        if any(answer.outcome in (MEMORY, CANNOT) for answer in answers):
            return True
        return bool(answers) and self._card.n_blocks == 0 and all(answer.ended is not None for answer in answers)

    def going_on(self) -> str:
        """A process that Python would wait for."""
        for process in multiprocessing.active_children():
            if not process.daemon and process.pid not in self._before:
                return f"process {process.name!r}"
        return ""

    def seconds_of_work(self) -> float:
        """Also of what those have started: one that waits for the workers of its loader goes on."""
        return seconds_of_work(process.pid or 0 for process in multiprocessing.active_children())

    def _mine(self) -> list[int]:
        return [pid for pid in children_of(self._process) if pid not in self._before]

    def end(self) -> None:
        """End whatever still runs; processes that use the card first report what they have taken."""
        waiting = {answer.pid for answer in self._last_answers() if answer.ended is None}
        for pid in waiting:
            _signal(pid, signal.SIGTERM)
        until = time.monotonic() + _SECONDS_TO_ANSWER
        while waiting & set(self._mine()) and time.monotonic() < until:
            time.sleep(0.02)
        self._unlink_semaphores()
        for pid in below(self._mine()):
            _signal(pid, signal.SIGKILL)
        multiprocessing.active_children()  # takes their exit codes

    def _unlink_semaphores(self) -> None:
        """Those of the script, while the process that keeps account of them is there: another would be started for them
        when Python ends, which does not know them and prints a KeyError for each."""
        for key, finalizer in list(util._finalizer_registry.items()):  # type: ignore[attr-defined]
            if key not in self._finalizers_before and finalizer._callback is SemLock._cleanup:  # type: ignore[attr-defined]
                finalizer()

    # -- in the process that was forked ---------------------------------------------------------------------

    def after_fork_in_child(self) -> None:
        _ANSWER_LOCK.release()
        where, spawned, in_main = self._forking
        self._spawning.on = False
        parent_used_it = self._used or self._is_bad_fork if self.in_child else self._card.n_blocks > 0
        self.in_child = True
        self._used = False  # a process of the script's may have used it, and start another: a worker of its loader
        self._is_bad_fork = parent_used_it and not spawned
        self._began = time.monotonic()
        self._card.begin_again_after_fork()
        self._card.before_next_allocation(self._bad_fork if self._is_bad_fork else self._first_use)
        self._where = where
        end_with_parent(os.getppid(), by_looking=not in_main or sys.platform != "linux")

    def _bad_fork(self) -> None:
        self._card.before_next_allocation(self._bad_fork)
        raise RuntimeError(_BAD_FORK)

    def _first_use(self) -> None:
        self._used = True
        self._tell(_Answer(os.getpid(), self._where, self._began))
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in (
            signal.SIG_DFL,
            None,
        ):
            signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, _: object) -> None:
        self._answer(None)
        signal.signal(number, signal.SIG_DFL)
        _signal(os.getpid(), number)

    def _guarding(self, original: Callable[..., int]) -> Callable[..., int]:
        """Wraps Process._bootstrap, which does not say why `run` failed."""

        def _bootstrap(process: Any, *args: Any, **kwargs: Any) -> int:
            run = process.run
            torch.set_num_threads(1)  # OpenMP's threads are not there after a fork

            def guarded() -> None:
                from vramcast.scripts.ending import Enough

                try:
                    run()
                except Enough:
                    # It would have gone on training: whoever waits for it still waits, and starts others before.
                    wait_until_idle(self._process, _SECONDS_TO_ANSWER)
                    self.end_child(None)
                except (CannotPredict, torch.OutOfMemoryError) as error:
                    self.end_child(error)
                except BaseException as error:
                    self._failure = error
                    raise

            process.run = guarded
            return original(process, *args, **kwargs)

        return _bootstrap

    def end_child(self, failure: BaseException | None) -> None:
        """The end of a forked process, with an answer if it used the card."""
        if isinstance(failure, SystemExit) and self._failure is not None:
            failure = self._failure
        self._answer(failure)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        code = failure.code if isinstance(failure, SystemExit) else 0 if failure is None else 1
        _EXIT(code if isinstance(code, int) else 1)

    def _answer(self, failure: BaseException | None) -> None:
        if not self._used:
            return
        card = self._card
        refused = isinstance(failure, torch.OutOfMemoryError) or (failure is not None and card.trace().ends_refused)
        outcome, message = FITS, ""
        if refused:
            outcome = MEMORY
            card.end_at_last_refusal()
        elif isinstance(failure, CannotPredict) or card.unknown_kernels:
            outcome, message = CANNOT, str(failure or card.unknown_kernels[0])
        elif failure is not None:
            told = failure_of(failure)
            outcome = FAILED
            message = f"{told.sentence('the process')}{told.remedy}{assumptions(card.assumed_values)}"
        self._before_answer(refused)
        trace = card.trace_since_fork()
        ended = time.monotonic()
        self._tell(_Answer(os.getpid(), self._where, self._began, ended, outcome, message, trace.steps, trace))
        self._used = False
        _signal(self._process, signal.SIGURG)

    # -- the answers ----------------------------------------------------------------------------------------

    def _tell(self, answer: _Answer) -> None:
        data = pickle.dumps(answer)
        data = len(data).to_bytes(8, "big") + data
        with _ANSWER_LOCK:
            fcntl.lockf(self._answers, fcntl.LOCK_EX)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._answers, view) :]
            finally:
                fcntl.lockf(self._answers, fcntl.LOCK_UN)

    def _last_answers(self) -> list[_Answer]:
        """The last answer of each process, in the order in which they first used the card."""
        answers: dict[int, _Answer] = {}
        at = 0
        while header := os.pread(self._answers, 8, at):
            size = int.from_bytes(header, "big")
            data = b""
            while len(data) < size and (part := os.pread(self._answers, size - len(data), at + 8 + len(data))):
                data += part
            if len(data) < size:
                break  # it is still being written
            answer: _Answer = pickle.loads(data)
            answers[answer.pid] = answer
            at += 8 + size
        return list(answers.values())

    def account_for(self, failure: BaseException | None) -> bool:
        """Called after the run: the card's trace becomes that of the process that takes most, with the others beside
        it. Returns whether one of them died because memory was refused."""
        answers = self._last_answers()
        os.close(self._answers)
        self.used_the_card = bool(answers)
        if self._cannot is not None:
            raise self._cannot
        if not answers:
            self._check_that_something_was_seen(failure)
            return False
        refused = [answer for answer in answers if answer.outcome == MEMORY]
        if not refused and isinstance(failure, torch.OutOfMemoryError) and self._card.trace().last_refusal is None:
            # Handed on by a worker, which lives on.
            refused = [
                replace(answer, trace=answer.trace.between(0, answer.trace.last_refusal))
                for answer in answers
                if answer.trace is not None and answer.trace.last_refusal is not None
            ]
        if not refused:
            self._check(answers)
        processes = list(_at_once(answers))
        if self._card.n_blocks:
            processes.append(_Answer(self._process, "", 0.0, None, FITS, "", 0, self._card.trace()))
        shown = max(refused or processes, key=_device_bytes)
        beside = [process for process in processes if process is not shown and process.pid != shown.pid]
        assert shown.trace is not None
        room = shown.trace.capacity_bytes - sum(_device_bytes(process) for process in beside)
        self._card.adopt(shown.trace.changed(capacity_bytes=max(room, 0)))
        if shown.where:
            self._card.note("processes", "what is shown is the process that is started here", shown.where)
        for process in beside:
            text = f"another process of the run takes {format_gib(_device_bytes(process))} of the card at its peak"
            self._card.note("processes", text, process.where or None)
        for answer in answers:
            if answer.outcome == FAILED:
                text = answer.message.partition("\n")[0]
                self._card.note("processes", f"in a process that is started here: {text}", answer.where)
        return bool(refused)

    def _check(self, answers: Sequence[_Answer]) -> None:
        for answer in answers:
            if answer.outcome == CANNOT:
                raise CannotPredict(f"in the process that {answer.where} starts: {answer.message}")
            if answer.trace is None:
                raise CannotPredict(
                    f"the process that {answer.where} starts was killed while it used the card: what it takes is not "
                    "known"
                )
            if answer.outcome == FAILED and not answer.steps:
                raise CannotPredict(f"in the process that {answer.where} starts: {answer.message}")

    def _check_that_something_was_seen(self, failure: BaseException | None) -> None:
        if self._programs and not self._card.n_blocks and not isinstance(failure, CannotPredict):
            where, words = self._programs[0]
            raise CannotPredict(
                f"{where}: the script uses no card itself; it starts `{shlex.join(words)}`, which was not looked at. "
                f"To predict it: {command_for(words)}"
            )

    # -- programs -------------------------------------------------------------------------------------------

    def _starting(self, original: Callable[..., None]) -> Callable[..., None]:
        def _execute_child(popen: Any, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
            words = words_of(args)
            if may_train(words):
                self._programs.append((own_line(), words))
                text = (
                    f"`{shlex.join(words)}` is a process of its own, which was not looked at; to predict it: "
                    f"{command_for(words)}"
                )
                self._card.note("processes", text, own_line())
            # close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, ...
            others = list(rest)
            if asks_nvidia_smi(words):
                text = nvidia_smi.answer(words, self._card.gpu, torch.cuda.device_count(), self._used_bytes)
                args, executable, others[6] = ["echo", text.rstrip()], None, False
            elif asks_terminal_size(words) and not (sys.stdin and sys.stdin.isatty()):  # at a terminal it says
                size = shutil.get_terminal_size()
                args, executable, others[6] = ["echo", f"{size.lines} {size.columns}"], None, False
            # A real card would be used for real.
            others[3] = {**(os.environ if others[3] is None else others[3]), "CUDA_VISIBLE_DEVICES": ""}
            if preexec_fn is None and threading.current_thread() is threading.main_thread():
                preexec_fn = ending_with_this()
            original(popen, args, executable, preexec_fn, *others)

        return _execute_child

    def _used_bytes(self, card: int) -> int:
        if not torch.cuda.is_initialized():
            return 0
        free, total = torch.cuda.mem_get_info(card)
        return total - free

    def _replacing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def execute(path: Any, args: Any, *environment: Any) -> Any:
            if self.in_child and not self._used:
                return original(path, args, *environment)
            words = [os.fsdecode(path), *map(os.fsdecode, list(args)[1:])]
            self._cannot = CannotPredict(
                f"{own_line()}: the script replaces itself by `{shlex.join(words)}`, with its own environment; start "
                f"it as it starts itself: {command_for(words)}"
            )
            raise self._cannot

        return execute


_current: Children | None = None
_ANSWER_LOCK = threading.Lock()
"""A fork must not come while another thread writes an answer."""
_EXIT = os._exit


def _before_fork() -> None:
    if _current is not None:
        _current.before_fork()


def _after_fork() -> None:
    if _current is not None:
        _current.after_fork()


def _after_fork_in_child() -> None:
    if _current is not None:
        _current.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def _anonymous_file() -> int:
    """A file without a name, so that nothing is left of it."""
    if sys.platform == "linux":
        return os.memfd_create("vramcast answers")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _at_once(answers: Sequence[_Answer]) -> Iterator[_Answer]:
    """The answers at the moment when overlapping processes take the most together."""

    def beside(answer: _Answer) -> list[_Answer]:
        return [other for other in answers if other.began <= answer.began < (other.ended or float("inf"))]

    moments = [beside(answer) for answer in answers]
    return iter(max(moments, key=lambda together: sum(map(_device_bytes, together))))


def _device_bytes(answer: _Answer) -> int:
    from vramcast.memory import predict

    return 0 if answer.trace is None else predict(answer.trace).device_bytes


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        _KILL(pid, number)


_KILL = os.kill


def _system(command: str) -> int:
    """Replaces os.system, so that what it starts is seen; it returns what wait does."""
    code = subprocess.call(command, shell=True)
    return code << 8 if code >= 0 else -code
