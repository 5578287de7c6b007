"""Files that vramcast itself writes: whole or not at all, and on the real disk even while an overlay keeps everything
else off it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from vramcast.base.errors import UsageError

Writer = Callable[[str, bytes | None, bool], None]
"""Given a path, the content (None: make a folder) and whether a file may be replaced; raises OSError."""

_writer: Writer | None = None


@contextlib.contextmanager
def through(writer: Writer) -> Iterator[None]:
    """Hand outputs to a process that sees the real disk."""
    global _writer
    before, _writer = _writer, writer
    try:
        yield
    finally:
        _writer = before


def write_file(path: Path, content: bytes, *, replace: bool = True) -> None:
    """UsageError where that is not possible; whatever lay there is then as it was."""
    with _explained(path):
        (_writer or write_here)(os.path.abspath(path), content, replace)


def publish(path: Path) -> None:
    """Put what `write_here` wrote, a file or a folder of files, on the real disk too."""
    if _writer is None:
        return
    with _explained(path):
        if path.is_dir():
            _writer(os.path.abspath(path), None, False)
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            _writer(os.path.abspath(file), file.read_bytes(), False)


def write_here(path: str, content: bytes | None, replace: bool) -> None:
    """Write as this process sees the disk: to a new file beside the old one, which then takes its name."""
    if content is None:
        os.mkdir(path)
        return
    target = os.path.realpath(path)
    try:
        mode: int | None = os.stat(target).st_mode
    except FileNotFoundError:
        mode = None
    if mode is not None and not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if mode is not None and not stat.S_ISREG(mode):  # /dev/null, a pipe, or a folder, which says so itself
        with open(target, "wb") as file:
            file.write(content)
        return
    name = os.path.basename(target)
    number, beside = tempfile.mkstemp(prefix=f".{name[:40]}.", dir=os.path.dirname(target))
    try:
        with open(number, "wb") as file:
            file.write(content)
        os.chmod(beside, _usual_mode() if mode is None else stat.S_IMODE(mode))
        if replace:
            os.replace(beside, target)
            return
        _take_name(beside, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def _take_name(beside: str, target: str) -> None:
    """Take the name, unless another process has taken it meanwhile."""
    try:
        os.link(beside, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from None
        os.replace(beside, target)
    else:
        os.unlink(beside)


def _usual_mode() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise UsageError(f"{path} exists already and is left as it is; name another file") from None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
