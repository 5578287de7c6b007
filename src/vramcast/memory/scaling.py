"""Any batch from two traces: where two runs make the same events, each allocation's size is a line through both.

Workspaces are left out of the comparison: kernels take and return them inside one op, in steps of their own, so that
one more sample may add or drop one. `exact` says whether they are the same too. What a kernel allocates need not lie
on a line, so an answer that matters is checked with a trace of that very size (`same_sizes`).
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from vramcast.errors import UsageError
from vramcast.memory.replay import replay
from vramcast.trace import StepTrace
from vramcast.trace.schema import ALLOC, FREE, KINDS

_WORKSPACES = KINDS.index("workspaces")
_CODE_BITS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Skeleton:
    """The events of a trace without workspaces that are given back."""

    trace: StepTrace
    blocks: array[int]
    """The blocks that are left, in the order they were made."""
    events: array[int]
    """Kind and argument of each event packed together, blocks renumbered."""

    @classmethod
    def of(cls, trace: StepTrace) -> Skeleton:
        blocks, events, number = array("q"), array("q"), {}
        for code, arg in zip(trace.event_kind, trace.event_arg, strict=True):
            if code in (ALLOC, FREE):
                if trace.kind[arg] == _WORKSPACES and trace.died_event[arg] >= 0:
                    continue
                if code == ALLOC:
                    number[arg] = len(blocks)
                    blocks.append(arg)
                events.append(number[arg] << _CODE_BITS | code)
            else:
                events.append(code)
        return cls(trace, blocks, events)

    def sizes(self) -> list[int]:
        return [self.trace.requested_bytes[block] for block in self.blocks]

    def kinds(self) -> list[int]:
        return [self.trace.kind[block] for block in self.blocks]

    def ops(self) -> list[str]:
        return [self.trace.ops[self.trace.op[block]] for block in self.blocks]


def difference(one: Skeleton, other: Skeleton) -> str | None:
    """The first thing that the two runs do differently, in words; None when they make the same events."""
    if one.events != other.events:
        event = _first_difference(one.events, other.events)
        return f"event {event:,} of {len(one.events):,} and {len(other.events):,} differs{_place(one, event)}"
    for mine, theirs in ((one.ops(), other.ops()), (one.kinds(), other.kinds())):
        if mine != theirs:
            block = _first_difference(mine, theirs)
            return f"allocation {block:,} is {mine[block]} in one and {theirs[block]} in the other"
    return None


def same_sizes(one: StepTrace, other: StepTrace) -> bool:
    """The two runs are equal to the byte, workspaces left out."""
    a, b = Skeleton.of(one), Skeleton.of(other)
    return a.sizes() == b.sizes() and difference(a, b) is None


@dataclass(frozen=True, slots=True, eq=False)
class ScaledTrace:
    """Two traces of one job that differ in one size and in nothing else."""

    low: StepTrace
    high: StepTrace
    low_size: int
    high_size: int
    exact: bool = field(init=False)
    """Workspaces come and go at the same places too."""
    _low: Skeleton = field(init=False, repr=False)
    _high: Skeleton = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.low_size >= self.high_size:
            raise UsageError(f"two different sizes are needed, not {self.low_size} and {self.high_size}")
        low, high = Skeleton.of(self.low), Skeleton.of(self.high)
        found = difference(low, high)
        if found is not None:
            raise DifferentRuns(f"sizes {self.low_size} and {self.high_size} run differently: {found}")
        object.__setattr__(self, "_low", low)
        object.__setattr__(self, "_high", high)
        object.__setattr__(self, "exact", self.low.event_arg == self.high.event_arg)

    def at(self, size: int) -> StepTrace:
        """The trace of another size; where workspaces differ, with those of the nearer trace."""
        if size in (self.low_size, self.high_size):
            return self.low if size == self.low_size else self.high
        near = self.low if abs(size - self.low_size) < abs(size - self.high_size) else self.high
        steps, span = size - self.low_size, self.high_size - self.low_size
        sizes = array("q", near.requested_bytes)
        if self.exact:
            places = pairs = range(near.n_blocks)
            lines = zip(places, pairs, pairs, strict=True)
        else:
            lines = zip((self._low if near is self.low else self._high).blocks, self._low.blocks, self._high.blocks,
                        strict=True)  # fmt: skip
        for place, low, high in lines:
            a, b = self.low.requested_bytes[low], self.high.requested_bytes[high]
            if a != b:
                sizes[place] = max(1, a + (b - a) * steps // span)
        unknown = array("i", bytes(array("i").itemsize * near.n_blocks))
        return dataclasses.replace(near, requested_bytes=sizes, shapes=("",), shape=unknown, calls=None)

    def needs(self, size: int) -> int:
        """Reserved bytes on a card without an end."""
        return replay(self.at(size)).peak_reserved.reserved_bytes

    def largest(self, fits: Callable[[StepTrace], bool], capacity_bytes: int, below: int) -> int:
        """The largest size under `below` whose trace fits; 0 when none does. Larger sizes are taken to need more."""
        needs_low, needs_high = self.needs(self.low_size), self.needs(self.high_size)
        slope = max(1, (needs_high - needs_low) // (self.high_size - self.low_size))
        guess = self.low_size + (capacity_bytes - needs_low) // slope
        return _last_true(lambda size: fits(self.at(size)), min(max(1, guess), below - 1), below)


class DifferentRuns(UsageError):
    """Two sizes of a job make different events, so that nothing can be said of a third from them."""


def _last_true(holds: Callable[[int], bool], guess: int, below: int) -> int:
    """The last size that holds, of those from 1 to `below` - 1, searched outwards from `guess`."""
    stride = 1
    if holds(guess):
        low, high = guess, below
        while low + stride < below:
            if not holds(low + stride):
                high = low + stride
                break
            low += stride
            stride *= 2
    else:
        low, high = 0, guess
        while high - stride > 0:
            if holds(high - stride):
                low = high - stride
                break
            high -= stride
            stride *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _first_difference(one: array[int] | list[int] | list[str], other: array[int] | list[int] | list[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)) - 1)


def _place(skeleton: Skeleton, event: int) -> str:
    trace = skeleton.trace
    for packed in reversed(skeleton.events[: event + 1]):
        if packed & (1 << _CODE_BITS) - 1 == ALLOC:
            block = skeleton.blocks[packed >> _CODE_BITS]
            module = trace.modules[trace.module[block]]
            return f", near {trace.ops[trace.op[block]]}" + (f" in {module}" if module else "")
    return ""
