"""What long work is at, on standard error: one line that is rewritten in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from vramcast.plain_text import printable

_QUIET_SECONDS = 3.0
"""Work that is done sooner says nothing outside a terminal."""

Progress = Callable[[str], None]


class Reporter:
    """Call it with what is being done; `done` clears the line."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._live = self._stream.isatty()
        self._start = time.monotonic()
        self._width = 0

    def __call__(self, text: str) -> None:
        text = printable(text)
        if self._live:
            self._stream.write(f"\r{text[:79]:<{self._width}}")
            self._width = min(79, len(text))
            self._stream.flush()
        elif time.monotonic() - self._start > _QUIET_SECONDS:
            print(f"vramcast: {text}", file=self._stream)

    def done(self) -> None:
        if self._live and self._width:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._stream.flush()
            self._width = 0


@contextlib.contextmanager
def reporting() -> Iterator[Reporter]:
    """Around a job's work: what it is at, and whatever its code prints, goes to standard error; only the result is
    standard output."""
    progress = Reporter()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield progress
    finally:
        progress.done()
