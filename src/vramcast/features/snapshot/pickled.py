"""A pickle read as data, piece by piece: nothing in it is run, and what is consumed is not kept.

A snapshot is a pickle of dicts, lists, texts and numbers. Python's own reader would build all of it, ten times the
file, and would call whatever functions a file names. This one knows the opcodes of data alone. Entries of the history
are handed on as soon as they are whole, and call stacks become one object each.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from vramcast.base.errors import UsageError

_BLOCK_BYTES = 4 * 2**20
_AHEAD_BYTES = 2**16
_MOST_TEXT_BYTES = 2**20
_MOST_OBJECTS = 2**28
_DEEPEST = 64

_TEXT_SIZES = {
    code: (struct.calcsize(form), struct.Struct(form).unpack_from)
    for code, form in ((0x8C, "<B"), (0x58, "<I"), (0x8D, "<Q"))
}

Entry = dict[str, Any]
Stack = tuple[Entry, ...]
"""A call stack, the innermost frame first. Equal ones are one object."""


class NotData(UsageError):
    """The pickle holds something else than data, or ends early."""


def read_pickle(file: BinaryIO, name: str, consume: Callable[[int, list[Entry]], None]) -> Any:
    """What the file holds; dicts with an "action" that stand in a list are given to `consume`, with a number that says
    which list, and left out. The list itself is that number's `Consumed`."""
    return _Reader(file, name, consume).read()


class Consumed(list[Any]):
    """A list whose entries were handed on."""

    number = -1


class _Reader:
    def __init__(self, file: BinaryIO, name: str, consume: Callable[[int, list[Entry]], None]) -> None:
        self._file, self._name, self._consume = file, name, consume
        self._buffer, self._ended = b"", False
        self._memo: list[Any] = []
        self._places: dict[int, int] = {}
        """id of a container → its place in the memo, of those made since the last entries were handed on."""
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self._lists = 0

    def read(self) -> Any:
        try:
            return self._run()
        except (IndexError, KeyError, struct.error, ValueError, TypeError, AttributeError):
            raise NotData(f"{self._name}: the pickle is damaged or ends early") from None

    def _more(self, position: int, needed: int = _AHEAD_BYTES) -> None:
        """Drop what was read and have `needed` bytes ahead, or all that there are."""
        parts = [self._buffer[position:]]
        have = len(parts[0])
        while have < needed and not self._ended:
            part = self._file.read(_BLOCK_BYTES)
            self._ended = not part
            parts.append(part)
            have += len(part)
        self._buffer = b"".join(parts)

    def _run(self) -> Any:
        memo, places = self._memo, self._places
        u16, u32, i32, f64 = (struct.Struct(form).unpack_from for form in ("<H", "<I", "<i", ">d"))
        stack: list[Any] = []
        outer: list[list[Any]] = []
        self._more(0)
        buffer, at = self._buffer, 0
        safe = len(buffer) - _AHEAD_BYTES
        while True:
            if at > safe and not self._ended:
                self._more(at)
                buffer, at = self._buffer, 0
                safe = len(buffer) - _AHEAD_BYTES
            code = buffer[at]
            at += 1
            if code == 0x6A:  # LONG_BINGET
                stack.append(memo[u32(buffer, at)[0]])
                at += 4
            elif code == 0x68:  # BINGET
                stack.append(memo[buffer[at]])
                at += 1
            elif code == 0x94:  # MEMOIZE
                top = stack[-1]
                if type(top) is dict or type(top) is list:
                    places[id(top)] = len(memo)
                memo.append(top)
            elif code == 0x4B:  # BININT1
                stack.append(buffer[at])
                at += 1
            elif code == 0x4D:  # BININT2
                stack.append(u16(buffer, at)[0])
                at += 2
            elif code == 0x4A:  # BININT
                stack.append(i32(buffer, at)[0])
                at += 4
            elif code == 0x8A:  # LONG1
                end = at + 1 + buffer[at]
                stack.append(int.from_bytes(buffer[at + 1 : end], "little", signed=True))
                at = end
            elif code == 0x28:  # MARK
                if len(outer) > _DEEPEST:
                    raise NotData(f"{self._name}: nested too deeply for a memory snapshot")
                outer.append(stack)
                stack = []
            elif code == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif code == 0x75:  # SETITEMS
                items, stack = stack, outer.pop()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            elif code == 0x5D:  # EMPTY_LIST
                stack.append([])
            elif code == 0x65:  # APPENDS
                items, stack = stack, outer.pop()
                self._append(stack, items)
            elif code == 0x61:  # APPEND
                items = [stack.pop()]
                self._append(stack, items)
            elif code == 0x73:  # SETITEM
                value, key = stack.pop(), stack.pop()
                stack[-1][key] = value
            elif code in (0x8C, 0x58, 0x8D):  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
                width, read = _TEXT_SIZES[code]
                size = read(buffer, at)[0]
                if size > _MOST_TEXT_BYTES:
                    raise NotData(f"{self._name}: a text of {size:,} bytes in a memory snapshot")
                at += width
                if at + size > len(buffer):
                    self._more(at, size + _AHEAD_BYTES)
                    buffer, at = self._buffer, 0
                    safe = len(buffer) - _AHEAD_BYTES
                stack.append(buffer[at : at + size].decode("utf-8", "replace"))
                at += size
            elif code == 0x71 or code == 0x72:  # BINPUT, LONG_BINPUT
                place, width = (buffer[at], 1) if code == 0x71 else (u32(buffer, at)[0], 4)
                at += width
                top = stack[-1]
                if type(top) is dict or type(top) is list:
                    places[id(top)] = place
                if place == len(memo):
                    memo.append(top)
                else:
                    memo[place] = top
            elif code == 0x4E:
                stack.append(None)
            elif code == 0x88:
                stack.append(True)
            elif code == 0x89:
                stack.append(False)
            elif code == 0x47:  # BINFLOAT
                stack.append(f64(buffer, at)[0])
                at += 8
            elif code == 0x29:
                stack.append(())
            elif code in (0x85, 0x86, 0x87):  # TUPLE1 to TUPLE3
                n = code - 0x84
                stack[-n:] = [tuple(stack[-n:])]
            elif code == 0x74:  # TUPLE
                items, stack = stack, outer.pop()
                stack.append(tuple(items))
            elif code == 0x30:  # POP
                stack.pop()
            elif code == 0x80:  # PROTO
                at += 1
            elif code == 0x95:  # FRAME
                at += 8
            elif code == 0x2E:  # STOP
                return stack.pop()
            else:
                raise NotData(
                    f"{self._name}: not a memory snapshot: its pickle has {_opcode(code)}, and more than data"
                )
            if len(memo) > _MOST_OBJECTS:
                raise NotData(f"{self._name}: too many objects")

    def _append(self, stack: list[Any], items: list[Any]) -> None:
        into = stack[-1]
        if not (items and type(items[0]) is dict and "action" in items[0]):
            into.extend(items)
            return
        memo, places = self._memo, self._places
        if not isinstance(into, Consumed):
            made = Consumed(into)
            made.number, self._lists = self._lists, self._lists + 1
            if id(into) in places:
                memo[places[id(into)]] = made
            stack[-1] = into = made
        for entry in items:
            place = places.pop(id(entry), None)
            if place is not None:
                memo[place] = None
            frames = entry.get("frames")
            if type(frames) is list:
                entry["frames"] = one = self.stack(frames)
                place = places.pop(id(frames), None)
                if place is not None:
                    memo[place] = one
        self._consume(into.number, items)
        places.clear()

    def stack(self, frames: list[Entry]) -> Stack:
        """The one object for this call stack. Frames are known by their identity: the memo keeps them."""
        key = tuple(map(id, frames))
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = tuple(frames)
        return found


def _opcode(code: int) -> str:
    found = next((name for name in pickle.__all__ if name.isupper() and getattr(pickle, name) == bytes([code])), None)
    return found or f"the byte {code:#04x}"
