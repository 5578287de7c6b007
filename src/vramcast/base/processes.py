"""Processes that vramcast starts end with it, whatever ends it: SIGKILL runs no clean-up of ours."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
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
    """A `preexec_fn` for subprocess: the started program ends with this process. None where the system has no way to do
    that."""
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
    """Reserve standard output for a process that answers there; everything else that prints goes to standard error."""
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


def children_of(parent: int) -> list[int]:
    """The processes that `parent` has started and that still run; none where there is no /proc."""
    status = {pid: _status(pid) for pid in _all_processes()}
    return [pid for pid, fields in status.items() if fields and fields[1] == str(parent) and fields[0] != "Z"]


_LOOKS_ASLEEP, _ASLEEP_SECONDS = 5, 0.05


def below(parents: Iterable[int]) -> list[int]:
    """These processes with all that they have started, and those in turn, and that still run."""
    by_parent: dict[str, list[int]] = {}
    for pid in _all_processes():
        fields = _status(pid)
        if fields and fields[0] != "Z":
            by_parent.setdefault(fields[1], []).append(pid)
    found = list(parents)
    for pid in found:  # grows as it is read
        found += by_parent.get(str(pid), [])
    return found


def seconds_of_work(pids: Iterable[int]) -> float:
    """Processor time that processes have used so far, with what they started: it does not shrink when that ends."""
    statuses = (_status(pid) for pid in below(pids))
    ticks = sum(int(field) for fields in statuses if fields for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_until_idle(pid: int, most_seconds: float) -> None:
    """Return when another process has waited for something for a while, or is gone. One that has work to do but gets
    no processor is not idle."""
    until = time.monotonic() + most_seconds
    asleep = 0
    before: list[str] = []
    while asleep < _LOOKS_ASLEEP and time.monotonic() < until:
        time.sleep(_ASLEEP_SECONDS)
        fields = _status(pid)
        if not fields:
            return
        asleep = asleep + 1 if fields[0] == "S" and fields[11:13] == before else 0
        before = fields[11:13]


def _all_processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return []


def _status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the name before it may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].decode().split()
    except OSError:
        return []
