"""Standard input, output and error of the command, whatever they are: closed, full, a pipe that nobody reads any more.

The exit code is the verdict in each case. A training script gets streams that it may close or replace.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import TextIO

_COPIES_FROM = 64
"""Copies of the standard streams get numbers from here on: a program that closes everything up to some small number
before it starts another does not close them."""


class _Sink(io.RawIOBase):
    """A descriptor to write to. What it does not take any more is dropped, and `error` says why."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        while self.error is None:
            try:
                return os.write(self._descriptor, view)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.error = error
        return view.nbytes


class Streams:
    """sys.stdout and sys.stderr that take everything; opened once, when the command starts."""

    def __init__(self) -> None:
        _fill_closed_descriptors()
        self._output, sys.stdout = _open(1, sys.stdout)
        self._errors, sys.stderr = _open(2, sys.stderr)
        self._both = sys.stdout, sys.stderr

    def code_after_writing(self, code: int) -> int:
        """Everything is written; the exit code is `code`, unless a result that was good is lost."""
        for stream in self._both:
            stream.flush()
        error = self._output.error
        # Whoever has gone, as in `| head`, has seen enough.
        if error is None or error.errno == errno.EPIPE:
            return code
        print(f"vramcast: cannot write to standard output: {error.strerror}", file=self._both[1])
        self._both[1].flush()
        return 2 if code == 0 else code


def _fill_closed_descriptors() -> None:
    """A file that is opened later would get the number of a stream that was closed, and what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _open(descriptor: int, like: TextIO | None) -> tuple[_Sink, TextIO]:
    """`like` is None where Python found the stream closed."""
    sink = _Sink(descriptor)
    stream = io.TextIOWrapper(
        io.BufferedWriter(sink),
        encoding="utf-8" if like is None else like.encoding,
        errors="backslashreplace",
        line_buffering=descriptor == 2 or sink.isatty(),
    )
    return sink, stream


@contextlib.contextmanager
def lent_to_script(*, output_to_errors: bool) -> Iterator[None]:
    """While a training script runs: what it closes, replaces or redirects is as it was afterwards.

    `output_to_errors`: all that is written to standard output meanwhile goes to standard error, also from C code and
    from processes that the script starts.
    """
    streams = sys.stdin, sys.stdout, sys.stderr
    _flush(*streams[1:])
    copies = _copies()
    objects = [_twin(stream) for stream in streams[1:]]
    if output_to_errors and objects[0] is not None and 2 in copies:
        os.dup2(2, 1)
    for name, twin in zip(("stdout", "stderr"), objects, strict=True):
        if twin is not None:
            setattr(sys, name, twin)
    if output_to_errors and objects[0] is None:
        sys.stdout = sys.stderr
    try:
        yield
    finally:
        _flush(sys.stdout, sys.stderr, *objects)
        for descriptor, copy in copies.items():
            with contextlib.suppress(OSError):  # the script closed even the copy: the stream stays as it is left
                os.dup2(copy, descriptor)
                os.close(copy)
        sys.stdin, sys.stdout, sys.stderr = streams


def _copies() -> dict[int, int]:
    """Copies of the descriptors 0, 1 and 2, where they are open."""
    import fcntl

    copies: dict[int, int] = {}
    for descriptor in range(3):
        with contextlib.suppress(OSError):
            copies[descriptor] = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _COPIES_FROM)
    return copies


def _twin(stream: TextIO | None) -> TextIO | None:
    """A stream of its own on the same descriptor, for a script to close; None for one that has no descriptor, such as
    a test's."""
    try:
        descriptor = -1 if stream is None else stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
    return _open(descriptor, stream)[1] if descriptor in (1, 2) else None


def _flush(*streams: TextIO | None) -> None:
    for stream in streams:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None:
                stream.flush()
