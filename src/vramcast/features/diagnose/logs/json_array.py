"""Objects of one array in a large JSON document, one after another, in constant memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.features.diagnose.logs.text import Source

_READ_BYTES = 1 << 20
_LONGEST_OBJECT = 1 << 24
_BETWEEN = re.compile(r"[\s,]*")


def objects(source: Source, key: str) -> Iterator[dict[str, Any]]:
    """The objects of the array `key`, or of the document when it is an array itself."""
    decode = json.JSONDecoder().raw_decode
    stream = _Text(source)
    _find_array(stream, key)
    while True:
        text, at = stream.text, _skip(stream.text, stream.at)
        if at < len(text) and text[at] == "]":
            return
        try:
            if at >= len(text):
                raise ValueError("the array does not end")
            value, end = decode(text, at)
        except RecursionError as error:
            raise _damaged(stream, at, error) from error
        except ValueError as error:
            # Either the object goes on behind what was read, or the file is damaged.
            if len(text) - at > _LONGEST_OBJECT or not stream.more():
                raise _damaged(stream, at, error) from error
            continue
        stream.at = end
        if isinstance(value, dict):
            yield value


class _Text:
    """What was read and not used yet."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = ""
        self.at = 0
        self.dropped = 0
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")

    def more(self) -> bool:
        data = self.source.stream.read(_READ_BYTES)
        if not data:
            return False
        self.dropped += self.at
        self.text = self.text[self.at :] + self._decoder.decode(data)
        self.at = 0
        return True


def _find_array(stream: _Text, key: str) -> None:
    pattern = re.compile(rf'"{re.escape(key)}"\s*:\s*\[')
    while True:
        start = _skip(stream.text, 0) if not stream.dropped else -1
        if start >= 0 and stream.text[start : start + 1] == "[":
            stream.at = start + 1
            return
        match = pattern.search(stream.text)
        if match is not None:
            stream.at = match.end()
            return
        # Keep what could be the beginning of the key.
        stream.at = max(0, len(stream.text) - len(key) - 64)
        if not stream.more():
            raise UsageError(f"{stream.source.name}: no array {key!r} in it")


def _skip(text: str, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return at if match is None else match.end()


def _damaged(stream: _Text, at: int, error: Exception) -> UsageError:
    place = stream.dropped + at
    return UsageError(f"{stream.source.name} is damaged or cut short at character {place:,}: {error}")
