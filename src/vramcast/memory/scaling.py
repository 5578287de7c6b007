"""Any batch from two traces, any length or width from three: where runs make the same events, each allocation's size
is a line through two of them, or a parabola through three.

Workspaces are left out of the comparison: kernels take and return them inside one op, in steps of their own, so that
one more sample may add or drop one. `exact` says whether they are the same too. What a kernel allocates need not lie
on a line, so an answer that matters is checked with a trace of that very size (`same_sizes`).
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm, prod

from vramcast.base.errors import UsageError
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


def difference(first: Skeleton, second: Skeleton) -> str | None:
    """The first thing that the two runs do differently, in words; None when they make the same events."""
    if first.events != second.events:
        event = _first_difference(first.events, second.events)
        return f"event {event:,} of {len(first.events):,} and {len(second.events):,} differs{_place(first, event)}"
    for mine, theirs in ((first.ops(), second.ops()), (first.kinds(), second.kinds())):
        if mine != theirs:
            block = _first_difference(mine, theirs)
            return f"allocation {block:,} is {mine[block]} in one and {theirs[block]} in the other"
    return None


def same_sizes(first: StepTrace, second: StepTrace) -> bool:
    """Whether the two runs are equal to the byte, workspaces left out."""
    a, b = Skeleton.of(first), Skeleton.of(second)
    return a.sizes() == b.sizes() and difference(a, b) is None


@dataclass(frozen=True, slots=True, eq=False)
class ScaledTrace:
    """Traces of one job that differ in one size and in nothing else."""

    traces: Mapping[int, StepTrace]
    """By that size, two or three of them."""
    exact: bool = field(init=False)
    """Whether workspaces come and go at the same places too."""
    _skeletons: Mapping[int, Skeleton] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.traces) < 2:
            raise UsageError("two different sizes are needed")
        skeletons = {size: Skeleton.of(self.traces[size]) for size in sorted(self.traces)}
        first, *others = skeletons
        for size in others:
            differs = difference(skeletons[first], skeletons[size])
            if differs is not None:
                raise DifferentRuns(f"sizes {first} and {size} run differently: {differs}")
        object.__setattr__(self, "_skeletons", skeletons)
        args = [self.traces[size].event_arg for size in skeletons]
        object.__setattr__(self, "exact", all(arg == args[0] for arg in args))

    @property
    def lowest(self) -> int:
        return min(self.traces)

    @property
    def highest(self) -> int:
        return max(self.traces)

    def at(self, size: int) -> StepTrace:
        """The trace of another size; where workspaces differ, with those of the nearest trace."""
        if size in self.traces:
            return self.traces[size]
        nearest = min(self._skeletons, key=lambda known: (abs(size - known), -known))
        near = self.traces[nearest]
        sizes = array("q", near.requested_bytes)
        weights, whole = _weights(tuple(self._skeletons), size)
        columns = [self.traces[known].requested_bytes for known in self._skeletons]
        if self.exact:
            places: Sequence[int] = range(near.n_blocks)
            rows = zip(*columns, strict=True)
        else:
            places = self._skeletons[nearest].blocks
            numbers = (skeleton.blocks for skeleton in self._skeletons.values())
            rows = zip(*([column[i] for i in blocks] for column, blocks in zip(columns, numbers, strict=True)),
                       strict=True)  # fmt: skip
        for place, row in zip(places, rows, strict=True):
            if row[0] != row[-1] or row[0] != row[1]:
                sizes[place] = max(1, sum(a * b for a, b in zip(row, weights, strict=True)) // whole)
        unknown = array("i", bytes(array("i").itemsize * near.n_blocks))
        return near.changed(requested_bytes=sizes, shapes=("",), shape=unknown, calls=None)

    def needs(self, size: int) -> int:
        """Reserved bytes on a card without an end."""
        return replay(self.at(size)).peak_reserved.reserved_bytes

    def largest(
        self, fits: Callable[[StepTrace], bool], capacity_bytes: int, below: int, size: Callable[[int], int] = int
    ) -> int:
        """The largest number under `below` whose trace fits; 0 when none does. More is taken to need more.

        `size` gives the size for a number, where these are not the same.
        """
        needs_low, needs_high = self.needs(self.lowest), self.needs(self.highest)
        slope = max(1, (needs_high - needs_low) // (self.highest - self.lowest))
        wanted = self.lowest + (capacity_bytes - needs_low) // slope
        guess = bisect.bisect_right(range(1, below), wanted, key=size)
        return last_true(lambda number: fits(self.at(size(number))), min(max(1, guess), below - 1), below)


class DifferentRuns(UsageError):
    """Two sizes of a job make different events, so that nothing can be said of a third from them."""


def _weights(known: tuple[int, ...], size: int) -> tuple[list[int], int]:
    """Lagrange's: what each known value counts at `size`, and what the sum is to be divided by."""
    parts = []
    for value in known:
        others = [other for other in known if other != value]
        parts.append((prod(size - other for other in others), prod(value - other for other in others)))
    whole = lcm(*(abs(below) for _, below in parts))
    return [above * (whole // below) for above, below in parts], whole


def last_true(holds: Callable[[int], bool], guess: int, below: int) -> int:
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


def _first_difference(first: array[int] | list[int] | list[str], second: array[int] | list[int] | list[str]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)) - 1)


def _place(skeleton: Skeleton, event: int) -> str:
    trace = skeleton.trace
    for packed in reversed(skeleton.events[: event + 1]):
        if packed & (1 << _CODE_BITS) - 1 == ALLOC:
            block = skeleton.blocks[packed >> _CODE_BITS]
            module = trace.modules[trace.module[block]]
            return f", near {trace.ops[trace.op[block]]}" + (f" in {module}" if module else "")
    return ""
