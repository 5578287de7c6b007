"""The user's code runs on the virtual card, and its files are not touched: what it writes goes to a throw-away overlay.

Two ways: the kernel's (kernel.py), for a process of our own on Linux, and Python's (redirect.py) for everywhere else.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from vramcast.base import outputs
from vramcast.overlay.writes import Writes, describe

__all__ = ["Overlay", "active", "latest", "protected", "put_back", "written_through"]

Note = Callable[[str, str], None]
"""Takes a topic and a text."""

FORCED = "VRAMCAST_OVERLAY"
"""An environment variable: "kernel" or "python" takes that way or fails; for tests."""


class Overlay(Protocol):
    def covers_this_thread(self) -> bool: ...

    def covers_child_processes(self) -> bool:
        """Whatever program they run."""
        ...

    def writes(self) -> Writes:
        """What was written and deleted so far."""
        ...

    def put_back(self) -> bool:
        """Show a process that was forked before anything was written the files as they were then; false where that
        cannot be done."""
        ...


_active: Overlay | None = None
_latest = Writes()
_turn = threading.RLock()
"""One at a time, where threads of one process run code of the user's."""
_written_through = False


def active() -> Overlay | None:
    """What keeps this process off the user's files just now."""
    return _active


@contextlib.contextmanager
def written_through() -> Iterator[None]:
    """The user wants the writes to be real."""
    global _written_through
    before, _written_through = _written_through, True
    try:
        yield
    finally:
        _written_through = before


@contextlib.contextmanager
def protected(note: Note | None = None, *, own_process: bool = False) -> Iterator[None]:
    """Around everything that runs the user's code. In a process of our own, which ends afterwards, it holds to the end
    and for child processes too; in one of the user's, for this thread and those it starts, and is undone. In the end
    `note` is told what would have been written."""
    if _written_through or (_active is not None and _active.covers_this_thread()):
        try:
            yield
        finally:
            _tell(note)
        return
    with contextlib.ExitStack() as exits:
        if not own_process:
            exits.enter_context(_turn)
        overlay = _for_good(exits) if own_process else _for_now(exits)
        exits.callback(_set_active, None)
        _set_active(overlay)
        exits.callback(_tell, note)
        yield


def _set_active(overlay: Overlay | None) -> None:
    global _active
    _active = overlay


def _tell(note: Note | None) -> None:
    global _latest
    if note is None:
        return
    _latest = Writes() if _active is None else _active.writes()
    for line in describe(_latest, os.getcwd()):
        note("files", line)


def hint(error: BaseException) -> str:
    """What an error of the code may have to do with us."""
    if _written_through or not isinstance(error, OSError):
        return ""
    if error.errno == errno.ENOSPC:
        return (
            "\nUntil the run ends, what the script writes lies in memory, or in $TMPDIR; --write-through writes it out."
        )
    if error.errno == errno.EOVERFLOW:
        return (
            "\nA file of another user or group cannot be changed in a prediction; --write-through lets the script try."
        )
    return ""


def put_back() -> bool:
    """Let a process that was forked before anything was written run the code again, on the files as they were; false
    where that cannot be, as with writes that are real."""
    return not _written_through and (_active is None or _active.put_back())


def latest() -> Writes:
    """What the code that ran last would have done to the user's files."""
    return _latest


def _for_good(exits: contextlib.ExitStack) -> Overlay:
    from vramcast.overlay import kernel
    from vramcast.overlay.bytecode import keep_bytecode
    from vramcast.overlay.helper import Helper

    forced = os.environ.get(FORCED)
    if forced != "python" and threading.active_count() == 1:
        helper = Helper()
        try:
            overlay = kernel.enter()
        except kernel.Refused:
            helper.close()
            if forced == "kernel":
                raise
        else:
            atexit.register(helper.close)
            exits.enter_context(outputs.through(helper.write))
            keep_bytecode(overlay.disk())
            return overlay
    from vramcast.overlay.redirect import PythonOverlay

    redirected = PythonOverlay(own_process=True)
    assert redirected.helper is not None
    atexit.register(redirected.helper.close)
    exits.enter_context(outputs.through(redirected.helper.write))
    return redirected


def _for_now(exits: contextlib.ExitStack) -> Overlay:
    from vramcast.overlay.redirect import PythonOverlay

    redirected = PythonOverlay(own_process=False)
    exits.callback(redirected.leave)
    return redirected
