"""Files with holes: as large as they would be on the card's machine, without room on the disk for what is missing."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

LARGEST_IN_MEMORY_BYTES = 1 << 28
"""A buffer in memory has no holes. What is larger is saved there without room for its data."""


class FilledFile:
    """A file that cannot have holes: they are filled with zeros."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        self._file.write(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_CUR:
            return self._file.seek(offset, whence)  # type: ignore[no-any-return]
        self._file.write(bytes(offset))
        return offset


def takes_holes(f: Any) -> bool:
    """A file on disk that is written where its position is."""
    if isinstance(f, (str, os.PathLike)):
        return True
    inner = getattr(f, "file", f) if isinstance(f, tempfile._TemporaryFileWrapper) else f
    if not isinstance(inner, (io.BufferedWriter, io.BufferedRandom, io.FileIO)) or not inner.seekable():
        return False
    return "a" not in getattr(inner, "mode", "a")


def leave_hole(file: Any, size: int) -> None:
    if takes_holes(file):
        file.flush()
        end = file.tell() + size
        file.truncate(end)
        file.seek(end)
    else:
        file.write(bytes(min(size, LARGEST_IN_MEMORY_BYTES)))


@contextlib.contextmanager
def opened(f: Any) -> Iterator[Any]:
    if isinstance(f, (str, os.PathLike)):
        with open(f, "wb") as file:
            yield file
    else:
        yield f


def name_of(f: Any) -> str | None:
    """The file behind a path or an open file; None for a buffer in memory."""
    if isinstance(f, (str, os.PathLike)):
        return os.fspath(f)
    name = getattr(f, "name", None)
    return name if isinstance(name, str) and not isinstance(f, io.BytesIO) else None


def path_of(f: Any) -> str | None:
    """The path of a file that is read from its beginning, whether it is given by name or already open."""
    if isinstance(f, (str, os.PathLike)):
        return os.fspath(f)
    if not isinstance(f, (io.BufferedReader, io.BufferedRandom)) or sys.platform != "linux":
        return None
    try:
        return f"/proc/self/fd/{f.fileno()}" if f.tell() == 0 else None
    except OSError:
        return None


def beginning_of(f: Any, size: int = 4096) -> bytes:
    if isinstance(f, (str, os.PathLike)):
        try:
            with open(f, "rb") as file:
                return file.read(size)
        except OSError:
            return b""
    here = f.tell()
    beginning: bytes = f.read(size)
    f.seek(here)
    return beginning
