"""Processes that vramcast starts end with it, whatever ends it: SIGKILL runs no clean-up of ours."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.5


def end_with_parent(parent: int, *, by_looking: bool = sys.platform != "linux") -> None:
    """Called first thing in a process that `parent` started: it is killed when that one ends.

    On Linux the kernel sees to it, when the *thread* that started the process ends. `by_looking` is for other systems,
    and for threads that end before what they started.
    """
    if by_looking:
        threading.Thread(target=_look_for, args=(parent,), name="vramcast parent", daemon=True).start()
    else:
        _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before we got here
        os.kill(os.getpid(), signal.SIGKILL)


def ending_with_this() -> Callable[[], None] | None:
    """A `preexec_fn` for subprocess: the program that is started ends with this process. None where there is no way."""
    if sys.platform != "linux":
        return None
    _libc()
    parent = os.getpid()
    return lambda: end_with_parent(parent)


def is_worker(parent: int) -> None:
    """The start of a process of a pool: it ends with `parent`, and Ctrl-C in a terminal is for `parent` to answer."""
    end_with_parent(parent)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def take_standard_output() -> BinaryIO:
    """For a process that answers on its standard output: that, while whatever prints there prints to standard error."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answer


_LIBC: ctypes.CDLL | None = None


def _libc() -> ctypes.CDLL:
    """Loaded before a fork, where it is called after one."""
    global _LIBC
    if _LIBC is None:
        _LIBC = ctypes.CDLL(None, use_errno=True)
    return _LIBC


def _look_for(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
