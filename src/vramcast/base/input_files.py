"""Files that a user names, opened in one place: regular files only, without waiting for anybody, up to a size.

A pipe would block, a device never ends. What a file unpacks or expands to is bounded too, for a few kilobytes can stand
for gigabytes.
"""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from vramcast.base.errors import UsageError
from vramcast.base.units import format_size

LARGEST_RESULT_BYTES = 2**28
"""The largest trace or other result of vramcast, unpacked."""
_LARGEST_EXPANDED_BYTES = 3 * 2**29
"""The most memory that the Python objects of a JSON text may take, as estimated below."""
_SMALL_TEXT = 2**20
_GZIP = b"\x1f\x8b"
_UNPACK_BYTES = 2**20
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# Bytes of memory for each character of JSON that begins or ends a value: a list, a dict of a few keys, half a text,
# and a place in a list with the number in it.
_EXPANDS = {"[": 72, "{": 240, '"': 30, ",": 40}


def open_input(path: str | Path, most_bytes: int | None = None) -> BinaryIO:
    """The file, open for reading; UsageError where it does not exist, cannot be read or is too large."""
    try:
        _check_regular(os.stat(path).st_mode, path)
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    file = os.fdopen(descriptor, "rb")
    try:
        status = os.fstat(descriptor)
        _check_regular(status.st_mode, path)
        if most_bytes is not None and status.st_size > most_bytes:
            raise _too_large(path, most_bytes)
    except BaseException:
        file.close()
        raise
    return file


def read_bytes(path: str | Path, most_bytes: int) -> bytes:
    """Read a whole file."""
    with open_input(path, most_bytes) as file:
        try:
            data = file.read(most_bytes + 1)
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    if len(data) > most_bytes:
        raise _too_large(path, most_bytes)
    return data


def read_text(path: str | Path, most_bytes: int) -> str:
    """Read a whole text file in UTF-8."""
    try:
        return read_bytes(path, most_bytes).decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8") from None


def read_unpacked(path: str | Path, most_bytes: int) -> bytes:
    """Read a whole file, unpacked where it is gzip; `most_bytes` limits both."""
    data = read_bytes(path, most_bytes)
    if not data.startswith(_GZIP):
        return data
    parts: list[bytes] = []
    total = 0
    try:
        while data:
            member = zlib.decompressobj(wbits=31)
            while not member.eof:
                part = member.decompress(data, _UNPACK_BYTES)
                data = member.unconsumed_tail
                total += len(part)
                if total > most_bytes:
                    raise UsageError(f"{path} unpacks to more than {format_size(most_bytes)}, which is not read")
                if not part and not data and not member.eof:
                    raise UsageError(f"{path} is cut short")
                parts.append(part)
            data = member.unused_data.lstrip(b"\0")
    except zlib.error as error:
        raise UsageError(f"{path} is damaged or cut short ({error})") from None
    return b"".join(parts)


def parse_json(text: str | bytes, where: str, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """UsageError for what is no JSON, or would take more memory than any file of ours."""
    if not text.strip():
        raise UsageError(f"{where} is empty")
    if len(text) > _SMALL_TEXT:
        counts = {sign: text.count(sign) if isinstance(text, str) else text.count(sign.encode()) for sign in _EXPANDS}
        if sum(_EXPANDS[sign] * count for sign, count in counts.items()) > _LARGEST_EXPANDED_BYTES:
            raise UsageError(f"{where} holds more values than can be read")
    try:
        return json.loads(text, object_pairs_hook=pairs_hook)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}:{error.lineno}: not JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{where} is not a text file in UTF-8") from None
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply") from None
    except ValueError:  # Python reads no number of thousands of digits
        raise UsageError(f"{where}: not JSON: a number with too many digits") from None


def read_json(path: str | Path, most_bytes: int) -> Any:
    """A JSON file, plain or gzipped."""
    return parse_json(read_unpacked(path, most_bytes), str(path))


def _check_regular(mode: int, path: str | Path) -> None:
    if not stat.S_ISREG(mode):
        kind = next((words for is_one, words in _KINDS if is_one(mode)), "something else")
        raise UsageError(f"{path} is {kind}, not a file")


def _too_large(path: str | Path, most_bytes: int) -> UsageError:
    return UsageError(f"{path} is too large: more than {format_size(most_bytes)}")
