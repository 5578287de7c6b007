"""Whether every step leaves memory behind: a graph kept by mistake, a list of outputs, a cache without an end.

A block that was made in one step and is alive at the end of a later one is no news in itself: gradients, the last
batch, a moving average live on until they are replaced. So what counts is that each step but the first (which makes
the optimizer's state) and the last leaves something behind, and that all of it is still there at the end. A buffer
that is replaced by a larger one each time leaves nothing behind; it shows in what is alive at the end of each step,
which is then more from step to step.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

from vramcast.card.dispatch.unknown import own_line
from vramcast.scripts.holders import holder
from vramcast.trace import Growth, TraceBuilder

THRESHOLD_BYTES = 1 << 16
"""A step that leaves less behind does not count: losses and counters that are collected."""
LOOKED_AT = 8
"""Steps before growth is called growth: a queue of the last few batches is full by then."""
_FIRST_DOUBT = 3
_LINES_AFTER = 5
"""Steps; where memory has grown until then, a longer run notes the lines of what it makes."""
_LINES_FROM_BYTES = 1 << 12


@dataclass(frozen=True, slots=True)
class _End:
    """What there was of each kind at the end of a step."""

    events: int
    blocks: int
    nodes: int
    """Nodes of autograd's graphs."""
    live_bytes: int


class Growing:
    """Told of the end of each step; keeps no tensor."""

    def __init__(self, builder: TraceBuilder, live_bytes: Callable[[], int]) -> None:
        self._builder = builder
        self._live_bytes = live_bytes
        self._ends: list[_End] = []
        self._lines: dict[int, str] = {}
        """Line by block, from when growth is suspected: finding a line takes time."""
        self._alloc = builder.alloc

    @property
    def steps(self) -> int:
        return len(self._ends)

    def step_ended(self) -> None:
        nodes = torch._C._autograd._get_sequence_nr()
        self._ends.append(_End(self._builder.n_events, self._builder.n_blocks, nodes, self._live_bytes()))
        if self.steps in (_LINES_AFTER, LOOKED_AT):
            alloc = self._alloc_with_line if self._grows() else self._alloc
            self._builder.alloc = alloc  # type: ignore[method-assign]

    def is_to_be_watched(self) -> bool:
        """Whether each step has left something behind so far, so that a few more are worth a look."""
        if not _FIRST_DOUBT <= self.steps < LOOKED_AT or not self._grows():
            return False
        self._builder.alloc = self._alloc_with_line  # type: ignore[method-assign]
        return True

    def growth(self, *, rising_counts: bool = True) -> Growth | None:
        """To be asked in the middle of the program, whose variables are looked at. `rising_counts`: what is alive after
        each step may rise without an end; not where batches come ordered by length."""
        self._builder.alloc = self._alloc  # type: ignore[method-assign]
        if self.steps < LOOKED_AT or not self._grows():
            return None
        builder, alive = self._builder, self._alive()
        if not rising_counts and not self._is_left_behind(alive):
            return None
        blocks = [block for left in self._left_behind(alive) for block in left]
        if not self._is_left_behind(alive):  # a buffer that was replaced in the last step
            blocks = [block for block in alive if block >= self._ends[-2].blocks]
            blocks = sorted(blocks, key=builder.size_of)[-1:]
        by_line: Counter[str] = Counter()
        by_op: Counter[tuple[str, str]] = Counter()
        for block in blocks:
            by_op[builder.op_of(block), builder.module_name(block)] += builder.size_of(block)
            if block in self._lines:
                by_line[self._lines[block]] += builder.size_of(block)
        op, module = by_op.most_common(1)[0][0]
        return Growth(
            bytes_per_step=(self._ends[-1].live_bytes - self._ends[1].live_bytes) // (self.steps - 2),
            steps=self.steps,
            where=by_line.most_common(1)[0][0] if by_line else None,
            op=op,
            module=module,
            held_by=holder(set(blocks), self._ends[-2].nodes, sys._getframe(1)),
        )

    def _grows(self) -> bool:
        rises = all(end.live_bytes - before.live_bytes >= THRESHOLD_BYTES for before, end in pairwise(self._ends[1:]))
        return rises or self._is_left_behind(self._alive())

    def _alive(self) -> list[int]:
        """The blocks made since the first step that are alive now."""
        return sorted(self._builder.alive_since(self._ends[0].events))

    def _is_left_behind(self, alive: list[int]) -> bool:
        return all(sum(map(self._builder.size_of, left)) >= THRESHOLD_BYTES for left in self._left_behind(alive))

    def _left_behind(self, alive: list[int]) -> list[list[int]]:
        """The blocks of each step, but the first and the last, that are alive now."""
        places = [bisect_left(alive, end.blocks) for end in self._ends[:-1]]
        return [alive[first:last] for first, last in pairwise(places)]

    def _alloc_with_line(
        self, requested_bytes: int, op_id: int, module_id: int, phase_id: int, stream: int = 0, shape_id: int = 0
    ) -> int:
        block = self._alloc(requested_bytes, op_id, module_id, phase_id, stream, shape_id)
        if requested_bytes >= _LINES_FROM_BYTES:
            self._lines[block] = own_line()
        return block
