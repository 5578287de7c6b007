"""The user's code runs on the virtual card, and its files are not touched: what it writes goes to a throw-away overlay.

Two ways: the kernel's (kernel.py), for a process of our own on Linux, and Python's (redirect.py) for everywhere else.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Protocol

from vramcast import outputs
from vramcast.overlay.writes import Writes, describe

__all__ = ["Overlay", "active", "describe", "protected", "written_through"]

FORCED = "VRAMCAST_OVERLAY"
"""An environment variable: "kernel" or "python" takes that way or fails; for tests."""


class Overlay(Protocol):
    def writes(self) -> Writes:
        """What was written and deleted so far."""
        ...


_active: Overlay | None = None
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
def protected(*, own_process: bool = False) -> Iterator[Overlay | None]:
    """Around everything that runs the user's code. In a process of our own, which ends afterwards, it holds to the end
    and for child processes too; in one of the user's, for this thread and those it starts, and is undone."""
    global _active
    if _active is not None or _written_through:
        yield _active
        return
    with contextlib.ExitStack() as exits:
        overlay = _for_good(exits) if own_process else _for_now(exits)
        _active = overlay
        exits.callback(_forget)
        yield overlay


def _forget() -> None:
    global _active
    _active = None


def _for_good(exits: contextlib.ExitStack) -> Overlay:
    from vramcast.overlay import kernel
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
