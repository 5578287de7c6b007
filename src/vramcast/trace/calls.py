"""The ops of a run in the order the host issued them: what the time of a step is worked out from.

One row for each op, and one for each mark that cuts a step or costs the host time without being an op (MARKS). Rows
point into a table of distinct calls (`ops` and `arguments`, texts), for a network repeats a few hundred of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

MODULE = "module"
"""The program calls a module."""
ITERATION, ITERATION_END = "iteration", "iteration end"
"""Iterations of the training loop; only where the loop is ours."""
BACKWARD, BACKWARD_END = "backward", "backward end"
OPTIMIZER, OPTIMIZER_END = "optimizer", "optimizer end"
"""Their arguments: how many parameters it has, and which optimizer it is."""
SYNCHRONIZE = "synchronize"
"""The host waits for the card."""
HOOK = "hook"
"""Python code sees a tensor that autograd saves, or wants back: checkpoints without reentry, offloading."""
CHECKPOINT = "checkpoint"
"""A checkpoint begins: its block is run, or run again in the backward pass."""
REPLAY = "replay"
"""A CUDA graph is launched; the ops that it recorded follow."""
COMPILED_GRAPH = "compiled graph"
"""Code that Inductor wrote is called, with so many inputs (its argument)."""
PYTHON = "python"
"""The program has called so many Python functions (its argument) that are not PyTorch's."""
COMMUNICATION = "communication"
"""A collective of several ranks: kind, bytes, ranks, machines, and "own" where the program goes on beside it."""
STREAM, RECORD, WAIT = "stream", "record", "wait"
"""Where there are collectives: what follows is issued to another stream; an event is recorded (stream, number); a
stream waits for events (stream, then stream:number for each)."""
STREAM_MARKS = (COMMUNICATION, STREAM, RECORD, WAIT)
MARKS = (
    *(HOOK, MODULE, ITERATION, ITERATION_END, BACKWARD, BACKWARD_END, OPTIMIZER, OPTIMIZER_END, SYNCHRONIZE),
    *(CHECKPOINT, REPLAY, COMPILED_GRAPH, PYTHON),
    *STREAM_MARKS,
)

GRAD = 1
"""Autograd records the op: it is on, and one of the tensors leads to something that is trained."""
ENGINE = 2
"""Inside a backward pass."""
RECOMPUTED = 4
"""Forward code inside a backward pass: a checkpointed block runs again."""
AUTOCAST = 8
"""Inside an autocast region."""
REPLAYED = 16
"""Part of a CUDA graph: the host does nothing for it."""
COMPILED = 32
"""Called by code that Inductor wrote, past autograd."""
LOADING = 64
"""While a data loader that has no workers makes a batch."""


def parameter_count(optimizer_arguments: str) -> float:
    """How many parameters an optimizer has, from the arguments of its mark."""
    count = optimizer_arguments.partition(" ")[0]
    if count and not count.isdecimal():
        raise ValueError(f"an optimizer's mark names {count!r} instead of its number of parameters")
    return float(count or 0)


@dataclass(frozen=True, slots=True, eq=False)
class OpCalls:
    """Parallel columns; `module` and `phase` point into the tables of the trace."""

    ops: Sequence[str]
    arguments: Sequence[str]
    call: array[int]
    """A row of `ops` and `arguments`."""
    module: array[int]
    phase: array[int]
    flags: array[int]
    event: array[int]
    """How many events of the trace had happened when the op was done."""
    settings: Mapping[str, bool] = field(default_factory=dict)
    """Switches of PyTorch that decide how fast an op is."""

    def __len__(self) -> int:
        return len(self.call)

    def between(self, first: int, last: int, renumbered: Callable[[int], int]) -> OpCalls:
        """The calls made while the events from `first` to `last` happened, of which others are left now."""
        rows = [row for row, event in enumerate(self.event) if first <= event <= last]
        columns: dict[str, Any] = {
            name: array(column.typecode, (column[row] for row in rows))
            for name in ("call", "module", "phase", "flags")
            for column in [getattr(self, name)]
        }
        return replace(self, event=array("q", (renumbered(self.event[row]) for row in rows)), **columns)


class CallLog:
    """Append-only; `build` makes the columns."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._texts: list[tuple[str, str]] = []
        self.by_text: dict[tuple[str, str], int] = {}
        """The number of each distinct call."""
        self._rows: list[int] = []
        self._before: list[int] | None = None
        self.settings: dict[str, bool] = {}

    def add_distinct(self, key: Any, op: str, arguments: str) -> int:
        """A call that was not met before, by any key that is equal for equal calls."""
        number = self.by_text.setdefault((op, arguments), len(self._texts))
        if number == len(self._texts):
            self._texts.append((op, arguments))
        self._numbers[key] = number
        return number

    def append(self, number: int, module: int, phase: int, flags: int, event: int) -> None:
        self._rows += (number, module, phase, flags, event)

    def mark(self, name: str, arguments: str, module: int, phase: int, flags: int, event: int) -> None:
        key = (name, arguments)
        number = self._numbers.get(key)
        if number is None:
            number = self.add_distinct(key, name, arguments)
        self._rows += (number, module, phase, flags, event)

    @property
    def n_rows(self) -> int:
        return len(self._rows) // 5

    def since(self, row: int) -> list[int]:
        """The numbers of the calls from that row on."""
        return self._rows[5 * row :: 5]

    def open_aside(self) -> None:
        """From now on rows are kept beside the others."""
        self._before, self._rows = self._rows, []

    @property
    def is_aside(self) -> bool:
        return self._before is not None

    def close_aside(self, kept_from: int) -> None:
        """Of the rows kept aside, those from this one on follow the others."""
        if self._before is not None:
            self._rows = self._before + self._rows[5 * kept_from :]
            self._before = None

    def end_at(self, n_events: int) -> None:
        """Forget the calls made after event number `n_events`."""
        while self._rows and self._rows[-1] > n_events:
            del self._rows[-5:]

    def build(self) -> OpCalls:
        rows = self._rows
        return OpCalls(
            ops=tuple(op for op, _ in self._texts),
            arguments=tuple(arguments for _, arguments in self._texts),
            call=array("i", rows[0::5]),
            module=array("i", rows[1::5]),
            phase=array("i", rows[2::5]),
            flags=array("b", rows[3::5]),
            event=array("q", rows[4::5]),
            settings=dict(self.settings),
        )
