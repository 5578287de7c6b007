"""The trace of a run as columns: every allocation and free in order, each with its op, module and phase.

Pure data, no torch. Two sets of parallel columns:

events   in the order they happened: `event_kind` (an index into EVENT_KINDS) and `event_arg`
         (alloc, free, reusable and kept: the block; every other kind: an index into `labels`)
blocks   one row for each allocation: `requested_bytes`, `op`, `module`, `phase` (indices into the string
         tables of those names), `kind` (an index into KINDS), `stream`, `shape` (an index into `shapes`, texts such
         as "float32[8, 1024, 768]" of the tensor it was made for; "" where there is none)

Blocks are numbered as they are made. Three columns are worked out from these when a trace is made or loaded:
`born_event`, `died_event` (-1 while still alive at the end) and `step` (how many optimizer steps had finished when the
block was made).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.trace.calls import OpCalls
from vramcast.trace.growth import Growth
from vramcast.trace.host import HostUse

KINDS: tuple[str, ...] = (
    "weights",
    "gradients",
    "optimizer state",
    "saved activations",
    "temporaries",
    "inputs",
    "buffers",
    "autocast copies",
    "workspaces",
    "outputs/other",
)

EVENT_KINDS: tuple[str, ...] = (
    "alloc",  # arg: block
    "free",  # arg: block
    "step",  # an optimizer step has finished
    "phase",  # label: the phase that starts here
    "empty_cache",
    "reset_peak",
    "synchronize",
    "oom",  # the allocation just before was refused, and the run was told so
    "mark",  # label: anything a reader may want to find again
    "reusable",  # arg: block, freed before; the other streams that used it are done with it
    "kept",  # arg: block; NCCL may let go of it here, the mark before says how likely (trace/kept.py)
)
ALLOC, FREE, STEP, PHASE, EMPTY_CACHE, RESET_PEAK, SYNCHRONIZE, OOM, MARK, REUSABLE, KEPT = range(len(EVENT_KINDS))
BLOCK_EVENTS = (ALLOC, FREE, REUSABLE, KEPT)
"""Event kinds whose argument is a block."""
FORWARD_PASS, BACKWARD_PASS = "forward pass ", "backward pass "
"""Labels of the marks before each pass of a pipeline stage; the number of its microbatch follows."""


class TraceError(UsageError):
    """A trace contradicts itself, or a file does not hold a trace this version can read."""


COMPUTED_VALUES = "--compute-values"
"""The topic of the note that the CPU has computed all values."""
UNKNOWN_SIZE = "unknown size"
"""The topic of notes on values that are assumed and that sizes or the rounds of a loop follow from."""

FROZEN_WEIGHTS = "frozen weights"
"""The topic of the note that an optimizer holds weights which are frozen in the steps seen."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader of a prediction must know: what was assumed, and where."""

    topic: str
    """What kind of note, e.g. "unknown read", "compiled as eager"; equal topics are shown together."""
    text: str
    where: str | None = None
    """file:line of the user's code, when there is one."""
    count: int = 1
    """How often it happened."""


@dataclass(frozen=True, slots=True)
class CardLimits:
    """One of the cards that a process uses."""

    card: int
    """Its number on the machine."""
    capacity_bytes: int
    context_bytes: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StepTrace:
    """One traced run. Make it with TraceBuilder or `StepTrace.load`; both check it."""

    gpu: Mapping[str, Any]
    """The card it was traced for, as `GpuSpec.to_dict()` wrote it; "id" and "name" at least."""
    torch_version: str
    allocator_conf: str
    """The PYTORCH_CUDA_ALLOC_CONF in force."""
    capacity_bytes: int
    """What the allocator may take from the driver, context already deducted."""
    context_bytes: int
    """CUDA context and loaded kernels: on the device, outside the allocator."""

    ops: Sequence[str]
    modules: Sequence[str]
    phases: Sequence[str]
    labels: Sequence[str]

    event_kind: array[int]
    event_arg: array[int]

    requested_bytes: array[int]
    op: array[int]
    module: array[int]
    phase: array[int]
    kind: array[int]
    stream: array[int]

    shapes: Sequence[str] = ("",)
    shape: array[int] = field(default_factory=lambda: array("i"))
    """Empty where it is not known for any block."""

    cards: Sequence[CardLimits] = ()
    """Where the process uses several cards: these, in the order of their places in the numbers of streams
    (allocator/card_streams.py). `capacity_bytes` and `context_bytes` are the first one's."""

    lines: Sequence[tuple[int, int, str]] = ()
    """Op, module and the line of code, "net.py:42", that first had the op allocate in that module. Only code of the
    user and of model libraries is named; empty in files of earlier releases."""

    calls: OpCalls | None = None
    """The ops in the order they were issued; None in files of earlier releases, and where sizes were worked out."""

    notes: Sequence[Note] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    """Other versions that matter to the result: transformers, bitsandbytes, vramcast."""
    source: str = ""
    """What was traced, as the user would name it: a script and its arguments."""
    host: HostUse | None = None
    """The computer's memory, where the run holds a part of itself there."""
    growth: Growth | None = None
    """Where every step leaves more behind."""

    born_event: array[int] = field(init=False)
    died_event: array[int] = field(init=False)
    step: array[int] = field(init=False)
    steps: int = field(init=False)
    """Optimizer steps that finished."""

    def __post_init__(self) -> None:
        if not self.shape:
            object.__setattr__(self, "shape", array("i", bytes(4 * len(self.requested_bytes))))
        self._check_columns()
        _check_events(self.event_kind, self.event_arg, len(self.requested_bytes))
        self._set_lifetimes()

    def _set_lifetimes(self) -> None:
        born, died, step, steps = _lifetimes(self.event_kind, self.event_arg, len(self.requested_bytes))
        object.__setattr__(self, "born_event", born)
        object.__setattr__(self, "died_event", died)
        object.__setattr__(self, "step", step)
        object.__setattr__(self, "steps", steps)

    def changed(self, **columns: Any) -> StepTrace:
        """The trace with other values of some fields, which must be consistent with the rest: nothing is checked again,
        and lifetimes are worked out only where the events change."""
        new = object.__new__(StepTrace)
        for name in _FIELDS:
            object.__setattr__(new, name, columns[name] if name in columns else getattr(self, name))
        if "event_kind" in columns or "event_arg" in columns:
            new._set_lifetimes()
        return new

    def line_of(self) -> Mapping[tuple[int, int], str]:
        """(op, module) → line of code."""
        return {(op, module): line for op, module, line in self.lines}

    def between(self, first: int, last: int) -> StepTrace:
        """The events from `first` up to `last` and the blocks that were made in them, as if nothing had been before."""
        events = range(first, last)
        made = [self.event_arg[event] for event in events if self.event_kind[event] == ALLOC]
        number = {block: place for place, block in enumerate(made)}
        kept = [e for e in events if self.event_kind[e] not in BLOCK_EVENTS or self.event_arg[e] in number]
        columns: dict[str, Any] = {
            name: array(column.typecode, (column[block] for block in made))
            for name in ("requested_bytes", "op", "module", "phase", "kind", "stream", "shape")
            for column in [getattr(self, name)]
        }
        columns["event_kind"] = array("b", (self.event_kind[event] for event in kept))
        columns["event_arg"] = array(
            "q",
            (
                number[self.event_arg[event]] if self.event_kind[event] in BLOCK_EVENTS else self.event_arg[event]
                for event in kept
            ),
        )
        if self.calls is not None:
            columns["calls"] = self.calls.between(first, last, lambda event: bisect_left(kept, event))
        return self.changed(**columns)

    @property
    def last_refusal(self) -> int | None:
        """The event after which a run ends that died of its last refused allocation; None if none was refused."""
        last = next((event for event in range(self.n_events - 1, -1, -1) if self.event_kind[event] == OOM), None)
        return None if last is None else last + 2  # the refused block is freed right after the mark

    @property
    def n_blocks(self) -> int:
        return len(self.requested_bytes)

    @property
    def n_events(self) -> int:
        return len(self.event_kind)

    @property
    def ends_refused(self) -> bool:
        """Whether the last allocation was refused, so that the run ends there and its full need is not known."""
        kinds = self.event_kind
        last = next((event for event in range(self.n_events - 1, -1, -1) if kinds[event] == ALLOC), -1)
        return 0 <= last < self.n_events - 1 and kinds[last + 1] == OOM

    def _check_columns(self) -> None:
        if len(self.event_kind) != len(self.event_arg):
            raise TraceError("trace: the event columns differ in length")
        tables = {
            "op": len(self.ops),
            "module": len(self.modules),
            "phase": len(self.phases),
            "kind": len(KINDS),
            "shape": len(self.shapes),
        }
        for name in ("op", "module", "phase", "kind", "stream", "shape"):
            column: array[int] = getattr(self, name)
            if len(column) != self.n_blocks:
                raise TraceError(f"trace: column {name!r} has {len(column)} rows for {self.n_blocks} blocks")
            if name in tables and column and not (min(column) >= 0 and max(column) < tables[name]):
                raise TraceError(f"trace: column {name!r} points outside its table of {tables[name]}")
        if self.calls is not None:
            self._check_calls(self.calls)
        if self.requested_bytes and min(self.requested_bytes) < 0:
            raise TraceError("trace: a block has a negative size")

    def _check_calls(self, calls: OpCalls) -> None:
        if len(calls.ops) != len(calls.arguments):
            raise TraceError("trace: the table of calls contradicts itself")
        tables = {"call": len(calls.ops), "module": len(self.modules), "phase": len(self.phases)}
        for name in ("call", "module", "phase", "flags", "event"):
            column: array[int] = getattr(calls, name)
            if len(column) != len(calls):
                raise TraceError(f"trace: column {name!r} of the calls has {len(column)} rows for {len(calls)}")
            if name in tables and column and not (min(column) >= 0 and max(column) < tables[name]):
                raise TraceError(f"trace: column {name!r} of the calls points outside its table")

    def save(self, path: str | Path) -> None:
        """Write the whole trace to one file (gzipped JSON)."""
        from vramcast.trace.storage import save

        save(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> StepTrace:
        """Read a trace that `save` wrote; TraceError says what is wrong with a file that is not one."""
        from vramcast.trace.storage import load

        return load(Path(path))


_FIELDS = tuple(field.name for field in fields(StepTrace))


def _check_events(event_kind: array[int], event_arg: array[int], n_blocks: int) -> None:
    """Refuses a sequence that cannot have happened. Blocks are numbered as they are made."""
    made = 0
    freed = bytearray(n_blocks)
    for event, (code, arg) in enumerate(zip(event_kind, event_arg, strict=True)):
        if code == ALLOC:
            if arg != made or arg >= n_blocks:
                raise TraceError(f"trace: event {event} allocates block {arg}, which is unknown or made already")
            made += 1
        elif code == FREE:
            if not 0 <= arg < made or freed[arg]:
                raise TraceError(f"trace: event {event} frees block {arg}, which is not alive")
            freed[arg] = 1
        elif code == REUSABLE:
            if not 0 <= arg < made or not freed[arg]:
                raise TraceError(f"trace: event {event} reuses block {arg}, which was not freed")
        elif code == KEPT:
            if not 0 <= arg < made:
                raise TraceError(f"trace: event {event} keeps block {arg}, which is unknown")
        elif not 0 <= code < len(EVENT_KINDS):
            raise TraceError(f"trace: event {event} is of unknown kind {code}")
    if made < n_blocks:
        raise TraceError(f"trace: block {made} is never allocated")


_IS_ALLOC, _IS_FREE, _IS_STEP = (bytes(code == kind for kind in range(256)) for code in (ALLOC, FREE, STEP))


def _lifetimes(
    event_kind: array[int], event_arg: array[int], n_blocks: int
) -> tuple[array[int], array[int], array[int], int]:
    """When each block was made and freed, and in which step."""
    kinds, events = event_kind.tobytes(), range(len(event_kind))
    born = array("q", list(compress(events, kinds.translate(_IS_ALLOC))))
    is_freed = kinds.translate(_IS_FREE)
    died = [-1] * n_blocks
    for event, block in zip(compress(events, is_freed), compress(event_arg, is_freed), strict=True):
        died[block] = event
    ends = [bisect_left(born, event) for event in compress(events, kinds.translate(_IS_STEP))]
    step = array("i")
    for number, (first, end) in enumerate(pairwise((0, *ends, n_blocks))):
        step += array("i", [number]) * (end - first)
    return born, array("q", died), step, len(ends)
