"""Memory of the computer that a run holds beside the card's, counted as it happens. Pure data, no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PAGEABLE, PINNED, PAGED = range(3)
"""Ordinary memory; page-locked memory of PyTorch's caching host allocator; CUDA's managed memory."""

_WORTH_SAYING_BYTES = 2**20
"""Below this it is a number that was read, not a part of the run."""

OTHER = "other"
CACHE = "pinned cache and rounding"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """What tensors take in the computer's memory at their highest, from the first forward pass on."""

    peak_bytes: int
    """Pageable memory, and what the allocator of pinned memory holds."""
    pinned_bytes: int
    """The pinned part of it: blocks are powers of two and are kept when they are free."""
    paged_bytes: int
    """Managed memory: on the card as far as there is room, else on the host; in neither figure."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """By kind; they add up to peak_bytes."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "peak_bytes": self.peak_bytes,
            "pinned_bytes": self.pinned_bytes,
            "paged_bytes": self.paged_bytes,
            "parts": dict(self.parts),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> HostUse:
        sizes = {name: int(data[name]) for name in ("peak_bytes", "pinned_bytes", "paged_bytes")}
        return HostUse(**sizes, parts={str(kind): int(size) for kind, size in data["parts"].items()})


class HostLog:
    """Every tensor made and freed on the host. A free may come at any moment: it only appends."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._where: list[int] = []
        self._kinds: dict[int, str] = {}
        self._events: list[int] = []
        """Block made: its number; block freed: its complement."""
        self._start: int | None = None

    def made(self, nbytes: int, where: int, kind: str | None) -> int:
        block = len(self._sizes)
        self._sizes.append(nbytes)
        self._where.append(where)
        if kind is not None:
            self._kinds[block] = kind
        self._events.append(block)
        return block

    def freed(self, block: int) -> None:
        self._events.append(~block)

    def set_kind(self, block: int, kind: str) -> None:
        """Say what the tensor is; the first call counts: a copy of a weight that was saved for the backward pass is an
        activation."""
        self._kinds.setdefault(block, kind)

    def is_pinned(self, block: int) -> bool:
        return self._where[block] == PINNED

    def begin(self) -> None:
        """Called when set-up is over: how weights come into memory differs from run to run, what the steps hold does
        not."""
        if self._start is None:
            self._start = len(self._events)

    def use(self) -> HostUse | None:
        """The memory that the run holds on the host; None where it holds none."""
        start = len(self._events) if self._start is None else self._start
        peak, peak_at = self._highest(start)
        paged = sum(size for size, where in zip(self._sizes, self._where, strict=True) if where == PAGED)
        if peak < _WORTH_SAYING_BYTES and not paged:
            return None
        alive, held = self._at(peak_at)
        parts: Counter[str] = Counter()
        for block in alive:
            if self._where[block] != PAGED:
                parts[self._kinds.get(block, OTHER)] += self._sizes[block]
        parts[CACHE] = held - sum(self._sizes[block] for block in alive if self._where[block] == PINNED)
        return HostUse(
            peak_bytes=peak,
            pinned_bytes=held,
            paged_bytes=paged,
            parts={kind: size for kind, size in parts.most_common() if size},
        )

    def _highest(self, start: int) -> tuple[int, int]:
        """The highest total after `start` events, and after how many events it is reached."""
        state = _State(self._sizes, self._where)
        peak, at = 0, start
        for number, event in enumerate(self._events):
            if number == start:
                peak, at = state.total, number
            state.apply(event)
            if number >= start and state.total > peak:
                peak, at = state.total, number + 1
        return (state.total, len(self._events)) if start >= len(self._events) else (peak, at)

    def _at(self, count: int) -> tuple[set[int], int]:
        state = _State(self._sizes, self._where)
        alive: set[int] = set()
        for event in self._events[:count]:
            state.apply(event)
            if event >= 0:
                alive.add(event)
            else:
                alive.discard(~event)
        return alive, state.pinned_held


class _State:
    """Pageable memory now, and PyTorch's pinned blocks: powers of two, kept in a list by size, never split
    (CachingHostAllocator.h of PyTorch)."""

    def __init__(self, sizes: list[int], where: list[int]) -> None:
        self._sizes, self._where = sizes, where
        self._free: Counter[int] = Counter()
        self.pageable = self.pinned_held = 0

    @property
    def total(self) -> int:
        return self.pageable + self.pinned_held

    def apply(self, event: int) -> None:
        made = event >= 0
        block = event if made else ~event
        size = self._sizes[block]
        if self._where[block] == PAGEABLE:
            self.pageable += size if made else -size
        elif self._where[block] == PINNED and size:
            rounded = 1 << (size - 1).bit_length()
            if not made:
                self._free[rounded] += 1
            elif self._free[rounded]:
                self._free[rounded] -= 1
            else:
                self.pinned_held += rounded
