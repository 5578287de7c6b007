"""Several cards in one process: the trace of each, as if it had been alone, and what it takes."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vramcast.allocator.card_streams import place_of, read_mark, without_card
from vramcast.allocator.stream_uses import USED_ELSEWHERE
from vramcast.trace import StepTrace
from vramcast.trace.schema import ALLOC, BLOCK_EVENTS, MARK, OOM, RESET_PEAK

_BLOCK_COLUMNS = ("requested_bytes", "op", "module", "phase", "kind", "shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """What a process takes on one of its cards."""

    card: int
    """Its number on the machine: 1 for cuda:1."""
    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class CardTrace:
    card: int
    trace: StepTrace
    events: list[int]
    """Of the process's events, those of this card."""


def traces_of_cards(trace: StepTrace) -> list[CardTrace]:
    """The trace of each card that has held anything. Ops stay in all of them: a step's time is that of all cards."""
    places = [place_of(stream) for stream in trace.stream]
    return [_trace_of(trace, place, places) for place in range(len(trace.cards)) if place in places]


def _trace_of(trace: StepTrace, place: int, places: list[int]) -> CardTrace:
    blocks = [block for block, other in enumerate(places) if other == place]
    number = {block: new for new, block in enumerate(blocks)}
    kept = [event for event in range(trace.n_events) if _concerns(trace, event, place, number)]
    limits = trace.cards[place]
    columns: dict[str, Any] = {
        name: array(column.typecode, (column[block] for block in blocks)) if column else column
        for name in _BLOCK_COLUMNS
        for column in [getattr(trace, name)]
    }
    columns["stream"] = array("i", (without_card(trace.stream[block]) for block in blocks))
    columns["event_kind"] = array("b", (trace.event_kind[event] for event in kept))
    columns["event_arg"] = array(
        "q", (number[arg] if kind in BLOCK_EVENTS else arg for kind, arg in _pairs(trace, kept))
    )
    if trace.calls is not None:
        columns["calls"] = trace.calls.between(0, trace.n_events, lambda event: bisect_left(kept, event))
    own = trace.changed(
        labels=tuple(read_mark(label)[1] for label in trace.labels),
        cards=(),
        capacity_bytes=limits.capacity_bytes,
        context_bytes=limits.context_bytes,
        **columns,
    )
    return CardTrace(limits.card, own, kept)


def _concerns(trace: StepTrace, event: int, place: int, blocks: dict[int, int]) -> bool:
    """Whether an event is of this card: of its blocks, marked as its own, or of all cards."""
    kind, arg = trace.event_kind[event], trace.event_arg[event]
    if kind in BLOCK_EVENTS:
        return arg in blocks
    if kind == OOM:  # of the block before
        return trace.event_kind[event - 1] == ALLOC and trace.event_arg[event - 1] in blocks
    if kind not in (MARK, RESET_PEAK):
        return True
    label = trace.labels[arg]
    if label == USED_ELSEWHERE:  # of the block that is freed next
        return trace.event_arg[event + 1] in blocks
    return read_mark(label)[0] == place


def _pairs(trace: StepTrace, events: list[int]) -> Iterator[tuple[int, int]]:
    for event in events:
        yield trace.event_kind[event], trace.event_arg[event]
