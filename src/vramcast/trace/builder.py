"""Collects a trace while the run goes on. `alloc` and `free` are on the hot path: two list operations each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from vramcast.trace.calls import CallLog
from vramcast.trace.growth import Growth
from vramcast.trace.host import HostUse
from vramcast.trace.schema import ALLOC, EVENT_KINDS, FREE, KEPT, KINDS, REUSABLE, CardLimits, Note, StepTrace

_EVENT_CODE = {name: code for code, name in enumerate(EVENT_KINDS)}
_CODE_BITS = 4
_CODE_MASK = (1 << _CODE_BITS) - 1
_ROW = 6  # requested_bytes, op, module, phase, stream, shape

KIND_ID: dict[str, int] = {name: kind_id for kind_id, name in enumerate(KINDS)}


class _Names:
    """A string table that hands out dense ids."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def intern(self, name: str) -> int:
        return self.ids.setdefault(name, len(self.ids))


class TraceBuilder:
    """Append-only recorder of allocations; `build` turns it into a StepTrace.

    Events are kept as one integer each (argument and kind packed together) and block rows as one flat list,
    so that recording costs next to nothing beside dispatching the op itself.
    """

    def __init__(self, default_kind: str = "temporaries") -> None:
        self._events: list[int] = []
        self.count_events = self._events.__len__
        """Of the hot path, as `n_events`."""
        self._rows: list[int] = []
        self._n_blocks = 0
        self._kinds: dict[int, int] = {}
        self.kind_if_said = self._kinds.get
        """Of the hot path: the kind that a block was said to be, else None."""
        self._default_kind = KIND_ID[default_kind]
        self._ops, self._modules, self._phases, self._labels = _Names(), _Names(), _Names(), _Names()
        self._shapes = _Names()
        self._shapes.intern("")  # memory that no tensor describes: workspaces, what a kernel takes for itself
        self._notes: dict[tuple[str, str, str | None], int] = {}
        self.calls = CallLog()
        self.lines: dict[tuple[int, int], str] = {}
        """By op and module."""
        self.intern_op = self._ops.intern
        self.intern_module = self._modules.intern
        self.intern_phase = self._phases.intern
        self.intern_shape = self._shapes.intern

    @property
    def n_blocks(self) -> int:
        return self._n_blocks

    @property
    def n_events(self) -> int:
        return len(self._events)

    def alloc(
        self, requested_bytes: int, op_id: int, module_id: int, phase_id: int, stream: int = 0, shape_id: int = 0
    ) -> int:
        """Record an allocation and give its block id (0, 1, 2 ... in order)."""
        block = self._n_blocks
        self._n_blocks = block + 1
        self._rows += (requested_bytes, op_id, module_id, phase_id, stream, shape_id)
        self._events.append(block << _CODE_BITS | ALLOC)
        return block

    def free(self, block: int) -> None:
        self._events.append(block << _CODE_BITS | FREE)

    def reusable(self, block: int) -> None:
        """Other streams that used the block, which was freed before, are done with it."""
        self._events.append(block << _CODE_BITS | REUSABLE)

    def kept(self, block: int, label: str) -> None:
        """NCCL may let go of the block here; `label` says how likely that is (trace/kept.py)."""
        self.mark("mark", label)
        self._events.append(block << _CODE_BITS | KEPT)

    def set_kind(self, block: int, kind_id: int) -> None:
        """Say what the block turned out to be; the last call counts."""
        self._kinds[block] = kind_id

    def set_module(self, block: int, module_id: int) -> None:
        """Give the block to another module, e.g. a parameter that was made before its module was known."""
        self._rows[block * _ROW + 2] = module_id

    def kind_of(self, block: int) -> int:
        return self._kinds.get(block, self._default_kind)

    def module_of(self, block: int) -> int:
        return self._rows[block * _ROW + 2]

    def phase_of(self, block: int) -> int:
        return self._rows[_ROW * block + 3]

    def size_of(self, block: int) -> int:
        return self._rows[block * _ROW]

    def stream_of(self, block: int) -> int:
        return self._rows[block * _ROW + 4]

    def module_name(self, block: int) -> str:
        return tuple(self._modules.ids)[self.module_of(block)]

    def op_of(self, block: int) -> str:
        return self.op_name(self._rows[block * _ROW + 1])

    def has_op(self, name: str) -> bool:
        """Whether an op of this name has allocated."""
        return name in self._ops.ids

    def op_name(self, op_id: int) -> str:
        return tuple(self._ops.ids)[op_id]

    def alive_since(self, event: int) -> set[int]:
        """The blocks made at or after `event` that are alive now."""
        alive: set[int] = set()
        for packed in self._events[event:]:
            code = packed & _CODE_MASK
            if code == ALLOC:
                alive.add(packed >> _CODE_BITS)
            elif code == FREE:
                alive.discard(packed >> _CODE_BITS)
        return alive

    def frees(self) -> Iterator[tuple[int, int]]:
        """(event, block) of every free so far."""
        for event, packed in enumerate(self._events):
            if packed & _CODE_MASK == FREE:
                yield event, packed >> _CODE_BITS

    def mark(self, kind: str, label: str = "") -> None:
        """Record an event that is neither alloc nor free; `kind` is one of EVENT_KINDS."""
        self._events.append(self._labels.intern(label) << _CODE_BITS | _EVENT_CODE[kind])

    def note(self, topic: str, text: str, where: str | None = None, count: int = 1) -> None:
        """Tell the reader something; the same note again only counts up."""
        key = (topic, text, where)
        self._notes[key] = self._notes.get(key, 0) + count

    def end_at_last_refusal(self) -> None:
        """Forget what came after the last refused allocation: the run died of it, only its clean-up followed."""
        mark = _EVENT_CODE["oom"]
        last = next((i for i in range(len(self._events) - 1, -1, -1) if self._events[i] & _CODE_MASK == mark), None)
        if last is None:
            return
        # The refused block is freed right after the mark.
        del self._events[last + 2 :]
        self._n_blocks = sum(event & _CODE_MASK == ALLOC for event in self._events)
        del self._rows[self._n_blocks * _ROW :]
        for block in [block for block in self._kinds if block >= self._n_blocks]:
            del self._kinds[block]
        self.calls.end_at(len(self._events))

    def live_blocks(self, on: Callable[[int], bool] = lambda stream: True) -> LiveBlocks:
        """What is alive now on these streams; for messages, not for the hot path."""
        freed = {event >> _CODE_BITS for event in self._events if event & _CODE_MASK == FREE}
        return LiveBlocks(
            self, [block for block in range(self._n_blocks) if block not in freed and on(self.stream_of(block))]
        )

    def build(
        self,
        *,
        gpu: Mapping[str, Any],
        torch_version: str,
        allocator_conf: str,
        capacity_bytes: int,
        context_bytes: int,
        cards: Sequence[CardLimits] = (),
        notes: Sequence[Note] = (),
        versions: Mapping[str, str] | None = None,
        source: str = "",
        host: HostUse | None = None,
        growth: Growth | None = None,
    ) -> StepTrace:
        """The trace so far. Recording may go on afterwards; the result does not change."""
        kind = array("b", [self._default_kind]) * self._n_blocks
        for block, kind_id in self._kinds.items():
            kind[block] = kind_id
        rows, events = self._rows, self._events
        collected = [Note(topic, text, where, count) for (topic, text, where), count in self._notes.items()]
        return StepTrace(
            gpu=dict(gpu),
            torch_version=torch_version,
            allocator_conf=allocator_conf,
            capacity_bytes=capacity_bytes,
            context_bytes=context_bytes,
            cards=tuple(cards),
            ops=tuple(self._ops.ids),
            modules=tuple(self._modules.ids),
            phases=tuple(self._phases.ids),
            labels=tuple(self._labels.ids),
            shapes=tuple(self._shapes.ids),
            lines=tuple((op, module, line) for (op, module), line in self.lines.items() if line),
            event_kind=array("b", [event & _CODE_MASK for event in events]),
            event_arg=array("q", [event >> _CODE_BITS for event in events]),
            requested_bytes=array("q", rows[0::_ROW]),
            op=array("i", rows[1::_ROW]),
            module=array("i", rows[2::_ROW]),
            phase=array("i", rows[3::_ROW]),
            kind=kind,
            stream=array("i", rows[4::_ROW]),
            shape=array("i", rows[5::_ROW]),
            calls=self.calls.build(),
            notes=(*collected, *notes),
            versions=dict(versions or {}),
            source=source,
            host=host,
            growth=growth,
        )


class LiveBlocks:
    """Blocks that are alive, and what they are as far as that is known."""

    def __init__(self, builder: TraceBuilder, blocks: Sequence[int]) -> None:
        self._builder = builder
        self._blocks = blocks

    def bytes_by_kind(self) -> dict[str, int]:
        return self._sums(lambda block: KINDS[self._builder.kind_of(block)])

    def bytes_by_module(self) -> dict[str, int]:
        return self._sums(self._builder.module_name)

    def _sums(self, name_of: Callable[[int], str]) -> dict[str, int]:
        held: dict[str, int] = {}
        for block in self._blocks:
            name = name_of(block)
            held[name] = held.get(name, 0) + self._builder.size_of(block)
        return held
