"""Attempts that were refused memory, after which the program went on with less: a batch finder's, or a batch that is
skipped. What counts is what was trained; the attempts only touch the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vramcast.base.units import format_gib
from vramcast.memory.replay import Replay
from vramcast.trace import Note
from vramcast.trace.schema import OOM, STEP


def of_training(run: Replay) -> Replay:
    """The run with the peaks of its steps alone, without those of attempts; itself where nothing was refused, or no
    step was made afterwards."""
    stretches = list(_stretches(run)) if OOM in run.trace.event_kind else []
    if not stretches:
        return run
    events = [event for first, end in stretches for event in range(first, end)]
    allocated, reserved = run.allocated_bytes, run.reserved_bytes
    return replace(
        run,
        peak_allocated=run.moment(max(events, key=allocated.__getitem__)),
        peak_reserved=run.moment(max(events, key=lambda event: (reserved[event], allocated[event]))),
    )


def _stretches(run: Replay) -> Iterator[tuple[int, int]]:
    """The events of each step; of one with an attempt, those from where the attempt's memory was given back. Nothing
    where the run ends with an attempt."""
    kinds, reserved = run.trace.event_kind, run.reserved_bytes
    first, refused, found = 0, None, []
    for event in range(run.n_events):
        if kinds[event] == OOM:
            refused = event
        elif kinds[event] == STEP:
            if refused is not None:
                lowest = min(reserved[refused : event + 1])
                first = max(place for place in range(refused, event + 1) if reserved[place] == lowest)
            found.append((first, event + 1))
            first, refused = event + 1, None
    if refused is not None:
        return
    yield from found
    if first < run.n_events:
        yield first, run.n_events


def note_of(run: Replay) -> Note:
    attempts = list(run.trace.event_kind).count(OOM)
    held = format_gib(run.peak_reserved.reserved_bytes)
    if attempts == 1:
        return Note(
            "refused",
            f"one attempt was refused memory, with up to {held} reserved, and the program went on with less: the "
            "figures are of the steps that were made",
        )
    return Note(
        "refused",
        f"{attempts} attempts were refused memory, with up to {held} reserved, and the program went on with less: the "
        "figures are of the steps that were made",
    )
