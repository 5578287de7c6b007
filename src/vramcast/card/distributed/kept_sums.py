"""The tensors of DDP's sums, which NCCL's group may keep longer than DDP does (trace/kept.py has the rule).

It matters where DDP lets go of them: the buckets of the first pass are replaced in the next forward pass, and a
communication hook sums a copy of the gradients in each step. Here the ops of the first two steps are timed, so that the
trace says at each further collective for how long each sum has been done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramcast.memory.clock import Clock
from vramcast.trace.calls import MARKS
from vramcast.trace.kept import FORGOTTEN_AFTER_SECONDS, kept_label

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vramcast.card.dispatch.ledger import Ledger
    from vramcast.card.dispatch.op_log import OpLog
    from vramcast.card.dispatch.position import Position
    from vramcast.gpus import GpuSpec
    from vramcast.trace.calls import OpCalls

_STEPS = 2
"""Later steps repeat the second."""


@dataclass(slots=True)
class _Sum:
    """The last one of a block."""

    group: str
    row: int
    """Its op is the first from this row on."""
    done: float | None = None
    """When the card has done it, once the ops up to it are timed."""


class KeptSums:
    """Of one process."""

    def __init__(self, gpu: GpuSpec, ledger: Ledger, position: Position, op_log: OpLog) -> None:
        self._gpu = gpu
        self._builder = ledger.builder
        self._position = position
        self._log = op_log
        self._clock: Clock | None = None
        self._timed_rows = 0
        self._sums: dict[int, _Sum] = {}
        """By block."""
        self._in_pass = False
        """The last collective was a sum."""
        self._finished = False

    def begin_collective(self, group: str, *, is_broadcast: bool) -> None:
        """The group lets go of what its watchdog has seen. DDP begins with a broadcast of the parameters."""
        if self._finished:
            return
        if self._clock is None:
            if is_broadcast:
                self._start()
        elif self._position.steps_done >= _STEPS:
            self.finish()
        elif self._sums and not (self._in_pass and self._position.backward_depth):
            self._in_pass = False
            self._tell(group)

    def add(self, group: str, blocks: Iterable[int]) -> None:
        """DDP has summed these blocks."""
        if self._finished:
            return
        if self._clock is None:
            self._start()
        self._in_pass = True
        self._sums |= {block: _Sum(group, self._log.n_rows) for block in blocks}

    def finish(self) -> None:
        """Stop timing."""
        if self._clock is not None and not self._finished:
            self._log.close_aside()
        self._finished = True
        self._sums.clear()

    def _start(self) -> None:
        self._clock = Clock(self._gpu, self._builder.has_op)
        self._log.open_aside()

    def _tell(self, group: str) -> None:
        now = self._time_ops()
        ages = {block: now - (sum_.done or 0.0) for block, sum_ in self._sums.items() if sum_.group == group}
        for block, age in ages.items():
            self._builder.kept(block, kept_label(age))
            if age >= FORGOTTEN_AFTER_SECONDS:
                del self._sums[block]

    def _time_ops(self) -> float:
        """Where the host is now, in seconds; how far the card was after each sum is noted."""
        assert self._clock is not None
        calls = self._log.noted_aside()
        for sum_ in sorted(self._sums.values(), key=lambda sum_: sum_.row):
            if sum_.done is None:
                rows = range(sum_.row, len(calls))
                self._time_rows(calls, next((row + 1 for row in rows if calls.ops[calls.call[row]] not in MARKS), 0))
                sum_.done = self._clock.card_seconds
        self._time_rows(calls, len(calls))
        return self._clock.host_seconds

    def _time_rows(self, calls: OpCalls, end: int) -> None:
        if self._clock is not None and end > self._timed_rows:
            self._clock.run(calls, range(self._timed_rows, end))
            self._timed_rows = end
