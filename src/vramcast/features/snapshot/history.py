"""The history in a snapshot as columns: blocks with their lifetimes and call stacks, and what the driver gave.

Memory counts from the allocation to `free_completed`: until then nobody else can have it. A block that is freed and was
never allocated in the history was there before it began, and so was one that is active at the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramcast.features.snapshot.pickled import Entry, Stack

_TAKES = ("segment_alloc", "segment_map")
_GIVES = ("segment_free", "segment_unmap")
BEFORE: Stack = ()


@dataclass(slots=True)
class History:
    """Entries of one card, in their order."""

    size: array[int] = field(default_factory=lambda: array("q"))
    """By block: bytes, birth (-1: before the history), death (-1: alive at the end), number of the call stack."""
    born: array[int] = field(default_factory=lambda: array("q"))
    died: array[int] = field(default_factory=lambda: array("q"))
    stack: array[int] = field(default_factory=lambda: array("i"))
    active: array[int] = field(default_factory=lambda: array("q"))
    """After each event, less what was there before the history."""
    reserved: array[int] = field(default_factory=lambda: array("q"))
    entries: int = 0
    refused: int = 0
    """Allocations that ended in out of memory."""
    stacks: list[Stack] = field(default_factory=lambda: [BEFORE])
    _numbers: dict[int, int] = field(default_factory=dict)
    _alive: dict[int, int] = field(default_factory=dict)

    def add(self, entries: Sequence[Entry]) -> None:
        alive, active, reserved = self._alive, self.active, self.reserved
        held, taken = (active[-1], reserved[-1]) if active else (0, 0)
        self.entries += len(entries)
        for entry in entries:
            action = entry["action"]
            if action == "alloc":
                alive[entry["addr"]] = len(self.size)
                self._block(entry["size"], len(active), self._stack_number(entry.get("frames")))
                held += entry["size"]
            elif action == "free_completed":
                block = alive.pop(entry["addr"], None)
                if block is None:
                    block = len(self.size)
                    self._block(entry["size"], -1, 0)
                self.died[block] = len(active)
                held -= self.size[block]
            elif action in _TAKES:
                taken += entry["size"]
            elif action in _GIVES:
                taken -= entry["size"]
            else:
                self.refused += action == "oom"
                continue
            active.append(held)
            reserved.append(taken)

    def end(self, segments: Sequence[Mapping[str, Any]]) -> None:
        """What lies on the card in the end: it says what was there before the history began."""
        for segment in segments:
            address = segment["address"]
            for block in segment["blocks"]:
                address = block.get("address", address)
                if str(block["state"]).startswith("active") and address not in self._alive:
                    self._block(block.get("requested_size", block["size"]), -1, self._stack_number(block.get("frames")))
                address += block["size"]
        if not self.active:
            self.active.append(0)
            self.reserved.append(0)
        before = sum(size for size, born in zip(self.size, self.born, strict=True) if born < 0)
        self.active = array("q", (level + before for level in self.active))
        taken_before = sum(segment["total_size"] for segment in segments) - self.reserved[-1]
        self.reserved = array("q", (level + taken_before for level in self.reserved))

    def _block(self, size: int, born: int, stack: int) -> None:
        self.size.append(size)
        self.born.append(born)
        self.died.append(-1)
        self.stack.append(stack)

    def _stack_number(self, frames: Any) -> int:
        if not frames:
            return 0
        frames = frames if isinstance(frames, tuple) else tuple(frames)
        number = self._numbers.get(id(frames))
        if number is None:
            number = self._numbers[id(frames)] = len(self.stacks)
            self.stacks.append(frames)  # kept, so that its id stays its own
        return number
