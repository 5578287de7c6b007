"""How a script ends. While it runs on a virtual card, nothing that it does ends the process before the verdict or keeps
it alive after it: os._exit and signals to itself, threads that train or never end, handlers that it installs.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from vramcast.base.errors import CannotPredict
from vramcast.card.device.patches import Patches
from vramcast.card.dispatch.failures import Failure, failure_of
from vramcast.card.dispatch.unknown import is_machinery
from vramcast.scripts.child_processes import Children

if TYPE_CHECKING:
    from vramcast.card.device.context import VirtualGpu

_PATIENCE_SECONDS = 5.0
"""For what a script does after it was stopped: `finally` blocks, mostly. Then it is interrupted again and again."""

_AGAIN_SECONDS = 0.2

_IDLE_SECONDS = 3.0
"""How long threads and processes that outlive the script's main thread may do nothing before they are no longer waited
for."""

_BUSY = 0.05
"""A process that takes less than this share of a core does nothing."""

_WAKE = signal.SIGURG
"""Ignored unless a handler is set, so that one too many does no harm."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends vramcast also ends it while a script runs that would handle these."""


class Enough(BaseException):
    """Unwinds the script; not an Exception, so that the script's own handlers let it pass."""

    on_raise: Callable[[], None] | None = None
    on_loss: Callable[[], None] | None = None
    """Called when the exception is gone: it has arrived, or was caught on the way."""

    def __init__(self) -> None:
        super().__init__()
        if Enough.on_raise is not None:
            Enough.on_raise()

    def __del__(self) -> None:
        if Enough.on_loss is not None:
            Enough.on_loss()


class _HardExit(BaseException):
    """os._exit, os.abort or a signal to itself: the process would have ended here."""


def _interrupt_soon() -> None:
    """Once the finalizer is over."""
    time.sleep(0.05)
    _thread.interrupt_main()


class ScriptEnding:
    """Around a script that runs on `card`. `before_answer` is called when a process that the script forked ends."""

    def __init__(self, card: VirtualGpu, before_answer: Callable[[bool], None]) -> None:
        self._card = card
        self._patches = Patches()
        self._at_exit: list[_Handler] = []
        self._handlers: dict[int, Any] = {}
        self._code: int | None = None
        self._elsewhere: BaseException | None = None
        self._stopping = self._insisting = self._over = False
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._threads_before = set(threading.enumerate())
        self.children = Children(card, self._stop_from_elsewhere, before_answer)
        self.exited = False
        """Whether the script ended itself, with exit code 0."""
        self.handled: Failure | None = None
        """The error in whose handler it did."""

    def run(self, body: Callable[[], None]) -> BaseException | None:
        """Why the script failed, if it did; it goes on until the last of its threads has ended, or it is stopped."""
        failure: BaseException | None = None
        with self._in_charge():
            try:
                try:
                    try:
                        body()
                    except SystemExit as error:
                        if error.code not in (None, 0):
                            raise
                        self.exited = True
                        if isinstance(error.__context__, Exception):
                            self.handled = failure_of(error.__context__)
                    self._run_at_exit()
                    self._wait_for_the_rest()
                finally:
                    self._over = True
            except (Enough, _HardExit):
                pass
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failure = error
            self._over = True
            if self._code:
                failure = SystemExit(self._code)
            if self.children.in_child:
                self.children.end_child(failure)
            if failure is None:
                failure = self._elsewhere
            self._forget_loaders()
            self.children.end()
        return failure

    def _forget_loaders(self) -> None:
        """A DataLoader has a handler that raises, wherever the program is, when one of its workers is killed."""
        handling = torch.utils.data._utils.signal_handling
        if self._is_main and handling._SIGCHLD_handler_set:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            handling._SIGCHLD_handler_set = False

    @contextlib.contextmanager
    def _in_charge(self) -> Iterator[None]:
        hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
        wake = signal.signal(_WAKE, self._woken) if self._is_main else None
        self._install()
        tracing = sys.gettrace()
        Enough.on_raise, Enough.on_loss = self._enough, self._raise_again
        try:
            yield
        finally:
            Enough.on_raise = Enough.on_loss = None
            if sys.gettrace() == self._at_next_line:
                sys.settrace(tracing)
            self._patches.undo()
            sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
            if self._is_main:
                signal.signal(_WAKE, wake)

    def _install(self) -> None:
        put = self._patches.set
        sys.unraisablehook = self._unraisable(sys.unraisablehook)
        put(os, "_exit", self._exit)
        put(os, "abort", lambda: self._exit(128 + signal.SIGABRT))
        put(os, "kill", self._kill(os.kill, {os.getpid()}))
        put(os, "killpg", self._kill(os.killpg, {0, os.getpgrp()}))
        put(signal, "raise_signal", lambda number: self._kill(os.kill, {os.getpid()})(os.getpid(), number))
        put(signal, "signal", self._set_handler(signal.signal))
        put(signal, "getsignal", self._get_handler(signal.getsignal))
        put(atexit, "register", self._register(atexit.register))
        put(atexit, "unregister", self._unregister(atexit.unregister))
        put(threading.Thread, "_bootstrap_inner", self._guarding(threading.Thread._bootstrap_inner))  # type: ignore[attr-defined]
        self.children.install(self._patches)

    def _unraisable(self, original: Callable[[Any], object]) -> Callable[[Any], object]:
        def unraisable(what: Any) -> None:
            if what.exc_type is KeyboardInterrupt:  # it came inside a finalizer, where Python only prints it
                _thread.start_new_thread(_interrupt_soon, ())
            elif what.exc_type is not Enough:
                original(what)

        return unraisable

    # -- being stopped --------------------------------------------------------------------------------------

    def _enough(self) -> None:
        """Somebody raises Enough, here or in another thread; whoever catches it, the script ends."""
        if self.children.in_child:
            return
        if self._stopping:
            self._raise_again()
        self._stopping = True
        elsewhere = threading.get_ident() != self._thread
        if not self._insisting:
            self._insisting = True
            _thread.start_new_thread(self._insist, (0.0 if elsewhere else _PATIENCE_SECONDS,))

    def _raise_again(self) -> None:
        """The script catches everything (`except:`): it is raised once more at the next line outside that handler, and
        so on until the script has ended."""
        if self._over or threading.get_ident() != self._thread or self.children.in_child:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not ScriptEnding.run.__code__:
            if not is_machinery(frame.f_code.co_filename):
                frame.f_trace = self._at_next_line
            frame = frame.f_back
        sys.settrace(self._at_next_line)

    def _at_next_line(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "line" and not self._over:
            raise Enough

    def _stop_from_elsewhere(self) -> None:
        with contextlib.suppress(Enough):
            raise Enough

    def _insist(self, seconds: float) -> None:
        time.sleep(seconds)
        while not self._over:
            if self._is_main:
                signal.pthread_kill(self._thread, _WAKE)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Enough))
            time.sleep(_AGAIN_SECONDS)

    def _woken(self, *_: object) -> None:
        """Called in the script's thread."""
        if self._over:
            return
        if self.children.have_ended_the_script():
            self._stopping = True
        if self._stopping:
            raise Enough

    # -- ending the process ---------------------------------------------------------------------------------

    def _exit(self, code: int) -> None:
        if self.children.in_child:
            self.children.end_child(SystemExit(code) if code else None)
        self._code = code
        if threading.get_ident() != self._thread:
            self._stop_from_elsewhere()
        raise _HardExit

    def _kill(self, original: Callable[[int, int], None], ourselves: set[int]) -> Callable[[int, int], None]:
        def kill(target: int, number: int) -> None:
            if target not in ourselves or self.children.in_child or number == 0:
                original(target, number)
                return
            handler = self._handlers.get(number, signal.SIG_DFL)
            if callable(handler):
                handler(number, sys._getframe(1))
            elif number in (*_ENDING_SIGNALS, signal.SIGKILL, signal.SIGABRT, signal.SIGQUIT) and (
                handler == signal.SIG_DFL
            ):
                self._exit(128 + number)
            elif number not in _ENDING_SIGNALS:
                original(target, number)

        return kill

    def _set_handler(self, original: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
        def set_handler(number: int, handler: Any) -> Any:
            if number not in (*_ENDING_SIGNALS, _WAKE) or self.children.in_child:
                return original(number, handler)
            before = self._handlers.get(number, signal.SIG_DFL)
            self._handlers[number] = handler
            return before

        return set_handler

    def _get_handler(self, original: Callable[[int], Any]) -> Callable[[int], Any]:
        return lambda number: self._handlers[number] if number in self._handlers else original(number)

    # -- handlers at exit -----------------------------------------------------------------------------------

    def _register(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The script's own run when it has ended, while its card is still there; libraries' when the process ends."""

        def register(function: Any, *args: Any, **kwargs: Any) -> Any:
            if is_machinery(sys._getframe(1).f_code.co_filename):
                return original(function, *args, **kwargs)
            self._at_exit.append(_Handler(function, args, kwargs))
            return function

        return register

    def _unregister(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def unregister(function: Any) -> None:
            self._at_exit = [registered for registered in self._at_exit if registered.function != function]
            original(function)

        return unregister

    def _run_at_exit(self) -> None:
        while self._at_exit:
            with contextlib.suppress(Exception, SystemExit):
                self._at_exit.pop()()

    # -- threads --------------------------------------------------------------------------------------------

    def _guarding(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def _bootstrap_inner(thread: Any) -> None:
            run = thread.run

            def guarded() -> None:
                try:
                    run()
                except (Enough, _HardExit):
                    pass
                except (torch.OutOfMemoryError, CannotPredict) as error:
                    # Nobody can catch it any more.
                    self._elsewhere = error
                    self._stop_from_elsewhere()
                except Exception as error:
                    if self._over:  # what it works with was taken away from it
                        return
                    self._note_failure(error)
                    raise

            thread.run = guarded
            try:
                original(thread)
            finally:
                del thread.run  # it would keep the thread, and what the thread was given, alive

        return _bootstrap_inner

    def _note_failure(self, error: Exception) -> None:
        if not self._over:
            failure = failure_of(error)
            whose = "vramcast failed in a thread of the script" if failure.is_ours else "a thread of the script failed"
            text = f"{whose}: {failure.reason}; what it would have done is missing"
            self._card.note("threads", text, failure.where)

    def _wait_for_the_rest(self) -> None:
        """Wait as Python does when a script's main thread has ended, but not for threads that only wait."""
        progress, since = self._progress(), time.monotonic()
        while going_on := self._going_on():
            time.sleep(0.1)
            now = self._progress()
            if now[0] > progress[0] or now[1] - progress[1] > _BUSY * (time.monotonic() - since):
                progress, since = now, time.monotonic()
            elif time.monotonic() - since > _IDLE_SECONDS:
                self._card.note("threads", f"{going_on} was still there when the script had ended, and was stopped")
                return

    def _going_on(self) -> str:
        for thread in threading.enumerate():
            if thread.daemon or thread in self._threads_before or thread is threading.main_thread():
                continue
            if not _is_idle_worker(thread):
                return f"thread {thread.name!r}"
        return self.children.going_on()

    def _progress(self) -> tuple[int, float]:
        """Events on the card, and seconds of work: of this process and those that it started."""
        return self._card.n_events, time.process_time() + self.children.seconds_of_work()


class _Handler:
    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self._args, self._kwargs = function, args, kwargs

    def __call__(self) -> None:
        self.function(*self._args, **self._kwargs)


def _is_idle_worker(thread: threading.Thread) -> bool:
    """Whether the thread is an idle worker of a ThreadPoolExecutor, which Python would tell to end."""
    pool = sys.modules.get("concurrent.futures.thread")
    queues = getattr(pool, "_threads_queues", {})
    if thread not in queues:
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "_worker" and queues[thread].empty()
