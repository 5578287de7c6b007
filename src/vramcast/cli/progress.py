"""Progress of long work, on standard error: one line that is rewritten in a terminal, nothing anywhere else."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from vramcast.base.language import sentence
from vramcast.base.plain_text import printable
from vramcast.cli.streams import lent_to_script

_FIRST_WORD_SECONDS = 30.0
"""Time after which a script that makes no step is mentioned; then after twice as long, and so on."""

Progress = Callable[[str], None]


class Reporter:
    """Call it with what is being done; `done` clears the line."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._live = self._stream.isatty()
        self._width = 0

    def __call__(self, text: str) -> None:
        text = printable(text)
        if self._live:
            self._stream.write(f"\r{text[:79]:<{self._width}}")
            self._width = min(79, len(text))
            self._stream.flush()

    def line(self, text: str) -> None:
        """A line that stays."""
        self.done()
        self._stream.write(f"vramcast: {sentence(text)}\n")  # a script may have replaced print
        self._stream.flush()

    def done(self) -> None:
        if self._live and self._width:
            self._stream.write(f"\r{'':<{self._width}}\r")
            self._stream.flush()
            self._width = 0


@contextlib.contextmanager
def reporting() -> Iterator[Reporter]:
    """Report progress around a job's work: progress, and whatever its code prints, goes to standard error; only the
    result goes to standard output."""
    progress = Reporter()
    try:
        with lent_to_script(output_to_errors=True):
            yield progress
    finally:
        progress.done()


@contextlib.contextmanager
def announced(script: Path) -> Iterator[Progress]:
    """Report progress around a script that is run. In a terminal, how far it is; anywhere, now and then, that no step
    has come yet and which line it is at."""
    reporter = Reporter()
    last = [time.monotonic()]
    done = threading.Event()
    thread = threading.get_ident()

    def progress(text: str) -> None:
        last[0] = time.monotonic()
        reporter(f"vramcast: {script.name}: {text}")

    def watch() -> None:
        wait = _FIRST_WORD_SECONDS
        while not done.wait(max(0.1, last[0] + wait - time.monotonic())):
            if time.monotonic() - last[0] >= wait:
                # No name may keep the frame: it holds what its callers' variables hold, tensors of the card too.
                place = _line_of(sys._current_frames().get(thread), script)
                reporter.line(f"{int(wait)} s without an optimizer step, now at {place}")
                wait *= 2

    # A thread begins without the language that is in force here.
    run_here = contextvars.copy_context().run
    watcher = threading.Thread(target=run_here, args=(watch,), daemon=True, name="vramcast progress")
    watcher.start()
    try:
        yield progress
    finally:
        done.set()
        watcher.join()
        reporter.done()


def _line_of(frame: FrameType | None, script: Path) -> str:
    """The line of the innermost call in the script itself."""
    while frame is not None and Path(frame.f_code.co_filename).name != script.name:
        frame = frame.f_back
    return f"{script.name}:{frame.f_lineno}" if frame is not None else script.name
