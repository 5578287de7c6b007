"""A log as blocks of whole lines, in constant memory, in any encoding; what is no text is refused with its place."""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from vramcast.base.errors import UsageError
from vramcast.base.input_files import open_input

BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 20
HEAD_BYTES = 1 << 16
_LARGEST_UNPACKED_BYTES = 2 << 30
_GZIP = b"\x1f\x8b"
_CONTROL = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f]")
_MOST_CONTROL = 0.02
"""Share of control characters in the first bytes; a progress bar has a few, a binary file many."""
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive (torch.save writes such files)"),
    (b"\x80\x02", "a pickle (an old torch.save file)"),
    (b"\x80\x04", "a pickle"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database (Nsight Systems exports such files)"),
    (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF document"),
    (b"PAR1", "a Parquet file"),
    (b"\xfd7zXZ", "an xz archive; unpack it first"),
    (b"(\xb5/\xfd", "a zstd archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
)
WHAT_IS_READ = (
    "a training log (lines of steps, Hugging Face Trainer, Lightning, tqdm, torchtitan, key=value, JSON lines), stage "
    "timings, trainer_state.json, metrics.csv or a torch.profiler trace"
)


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Source:
    """An opened log and what its first bytes say."""

    name: str
    stream: Readable
    """From the beginning, unpacked, as UTF-8 or another encoding that has ASCII in it."""
    head: bytes
    encoding: str
    size_bytes: int | None = None
    """None: not known."""
    is_packed: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    data: bytes
    """Whole lines, but for the last of the log."""
    first_line: int
    """As an editor counts, from 1: what stands after a carriage return is on the same line."""
    line_ends: int
    offset: int
    is_last: bool


@contextmanager
def opened(path: str | Path) -> Iterator[Source]:
    """Open a log; "-" is standard input."""
    name = str(path)
    if name == "-":
        yield _source("standard input", cast("BinaryIO", sys.stdin.buffer))
        return
    with open_input(path) as file:
        source = _source(name, file)
        size_bytes = os.fstat(file.fileno()).st_size
        yield source if source.is_packed else dataclasses.replace(source, size_bytes=size_bytes)


def _source(name: str, file: BinaryIO) -> Source:
    stream: Readable = _Careful(file, name)
    head = _read_fully(stream, HEAD_BYTES)
    stream = _Again(head, stream)
    packed = False
    if head[:2] == _GZIP:
        # GzipFile asks for read() only.
        unpacked = gzip.GzipFile(fileobj=cast("BinaryIO", _File(stream)))
        stream = _Careful(unpacked, f"{name} (gzip)", most_bytes=_LARGEST_UNPACKED_BYTES)
        head = _read_fully(stream, HEAD_BYTES)
        stream = _Again(head, stream)
        packed = True
    if not head.strip():
        raise UsageError(f"{name} is empty; {WHAT_IS_READ} is needed")
    encoding = _encoding(name, head)
    if encoding.startswith(("utf-16", "utf-32")):
        stream = _Recoded(stream, encoding)
        head = _read_fully(stream, HEAD_BYTES)
        stream = _Again(head, stream)
        return Source(name, stream, head, "utf-8", is_packed=packed)
    return Source(name, stream, head, encoding, is_packed=packed)


def _encoding(name: str, head: bytes) -> str:
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if head.startswith(mark):
            return encoding
    for magic, what in _FOREIGN:
        if head.startswith(magic):
            raise UsageError(f"{name} is {what}, not a log; {WHAT_IS_READ} is needed")
    # Text in UTF-16 without a mark: every second byte of ASCII is zero.
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros = head[first::2].count(0)
        if len(head) >= 4 and zeros > 0.6 * len(head[first::2]) and head[1 - first :: 2].count(0) <= zeros // 8:
            return encoding
    control = len(_CONTROL.findall(head))
    if control > max(_MOST_CONTROL * len(head), 0):
        first_bad = _CONTROL.search(head)
        at = first_bad.start() if first_bad is not None else 0
        kind = " (a TensorBoard event file?)" if b"brain.Event" in head else ""
        raise UsageError(
            f"{name} is not text: byte 0x{head[at]:02x} at offset {at}, line {head.count(10, 0, at) + 1}{kind}; "
            f"{WHAT_IS_READ} is needed"
        )
    # The end of the head may cut a character.
    for encoding in ("utf-8", "gb18030"):
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            decoder.decode(head)
        except UnicodeDecodeError:
            if encoding == "utf-8" and _few_broken(head):
                return "utf-8"
            continue
        return encoding
    return "latin-1"


def _few_broken(head: bytes) -> bool:
    """Whether it is mostly UTF-8, with a few cut characters, as in logs of several processes."""
    text = head.decode("utf-8", errors="replace")
    beyond_ascii = sum(character > "\x7f" for character in text)
    return text.count("\ufffd") * 10 <= beyond_ascii


def blocks(source: Source) -> Iterator[Block]:
    """The whole log; memory does not grow with it. A line longer than a block is cut."""
    held = b""
    line, offset = 1, 0
    ready: Block | None = None
    while True:
        chunk = source.stream.read(BLOCK_BYTES)
        data = held + chunk
        end = len(data) if not chunk else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(data) > LONGEST_LINE_BYTES:
            end = len(data)
        held = data[end:]
        if end:
            if ready is not None:
                yield ready
            data = data[:end] if held else data
            ready = Block(data, line, data.count(b"\n"), offset, is_last=False)
            line += ready.line_ends
            offset += end
        if not chunk:
            break
    if ready is not None:
        yield dataclasses.replace(ready, is_last=True)


def _read_fully(stream: Readable, size: int) -> bytes:
    parts = []
    while size > 0:
        part = stream.read(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@dataclass(slots=True)
class _Careful:
    """Reads, and turns errors into a message that names the place."""

    file: Readable
    name: str
    position: int = 0
    most_bytes: int | None = None

    def read(self, size: int, /) -> bytes:
        try:
            data = self.file.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f"{self.name} is damaged or cut short after {self.position:,} bytes: {error}") from error
        except OSError as error:
            raise UsageError(f"cannot read {self.name}: {error.strerror or error}") from error
        self.position += len(data)
        if self.most_bytes is not None and self.position > self.most_bytes:
            raise UsageError(f"{self.name} unpacks to more than {self.most_bytes >> 30} GiB; unpack it first")
        return data


@dataclass(slots=True)
class _Again:
    """Gives the first bytes once more, then goes on."""

    first: bytes
    then: Readable

    def read(self, size: int, /) -> bytes:
        if self.first:
            data, self.first = self.first[:size], self.first[size:]
            return data
        return self.then.read(size)


class _Recoded:
    """UTF-16 and UTF-32 as UTF-8, so that lines can be found by bytes."""

    def __init__(self, stream: Readable, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._held = b""

    def read(self, size: int, /) -> bytes:
        while not self._held:
            data = self._stream.read(size)
            self._held = self._decoder.decode(data, final=not data).encode("utf-8", errors="replace")
            if not data:
                break
        data, self._held = self._held[:size], self._held[size:]
        return data


class _File(io.RawIOBase):
    """A Readable as a file object."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._stream.read(size if size >= 0 else BLOCK_BYTES)
