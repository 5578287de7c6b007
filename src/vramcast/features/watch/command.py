"""A training command that `watch` starts itself, and what it prints meanwhile. It is never ended from here."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO

from vramcast.base.errors import UsageError


class Command:
    """It runs in the same process group, so that Ctrl-C reaches it from the terminal as if it had been started alone.

    `capture`: its lines are kept for `take_lines`, so that a drawing can stand below them; otherwise they go where
    ours go (its standard output to standard error if `to_stderr`).
    """

    def __init__(self, words: Sequence[str], *, capture: bool, to_stderr: bool, when_done: Callable[[], None]) -> None:
        streams: dict[str, int] = {}
        if capture:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        elif to_stderr:
            streams = {"stdout": 2}
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(list(words), **streams)  # type: ignore[call-overload]
        except OSError as error:
            raise UsageError(f"--command: cannot start {words[0]!r}: {error.strerror}") from None
        self.pid: int = self._process.pid
        self._lines: deque[str] = deque()
        self.unfinished = ""
        """What it printed after its last line: a progress bar, mostly."""
        self._threads = [threading.Thread(target=self._wait, args=(when_done,), daemon=True)]
        if capture:
            self._threads.append(threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True))
        for thread in self._threads:
            thread.start()

    def exit_code(self) -> int | None:
        """None while it runs; a signal that ended it as the shell counts it, 128 + its number."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def take_lines(self) -> list[str]:
        taken = []
        while self._lines:
            taken.append(self._lines.popleft())
        return taken

    def finish_reading(self) -> None:
        """After it has ended: what is still in the pipe. A child of it may hold it open; that is not waited for."""
        for thread in self._threads:
            thread.join(timeout=1)

    def _wait(self, when_done: Callable[[], None]) -> None:
        self._process.wait()
        when_done()

    def _read(self, stream: IO[bytes]) -> None:
        pending = ""
        while chunk := os.read(stream.fileno(), 65536):
            *lines, pending = (pending + chunk.decode(errors="replace").replace("\r\n", "\n")).split("\n")
            # A progress bar goes back to the beginning of its line; its last state is what counts.
            self._lines.extend(line.rstrip("\r").rpartition("\r")[2] for line in lines)
            self.unfinished = pending.rstrip("\r").rpartition("\r")[2]
        if pending:
            self._lines.append(self.unfinished)
            self.unfinished = ""
