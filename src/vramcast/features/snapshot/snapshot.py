"""What a memory snapshot says: memory over the recording, and what is alive at its highest moment, by line of code."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.input_files import open_input
from vramcast.features.snapshot.frames import Place, place
from vramcast.features.snapshot.history import History
from vramcast.features.snapshot.pickled import Consumed, Entry, read_pickle
from vramcast.memory.step_course import (
    MOST_POINTS,
    SEVERAL,
    Point,
    Row,
    SegmentCourse,
    SegmentPart,
    StepCourse,
    joined,
)

_NAMED_LINES = 10
_MOST_ROWS = 5000
"""Fewer than of a traced step: each row has a call stack."""
_MOST_KEYS = 100_000
_FEWEST_POINTS = 24
OTHER_LINES = "other lines"
_EVERY_ENTRIES = 200_000


@dataclass(frozen=True, slots=True)
class LineUse:
    """What one line of code holds at the peak."""

    line: str
    size_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    name: str
    device: int
    entries: int
    """In the history of this card."""
    refused: int
    """Allocations that were refused."""
    peak_active_bytes: int
    peak_reserved_bytes: int
    reserved_at_peak_bytes: int
    before_bytes: int
    """Active at the peak, and allocated before the history began."""
    lines: tuple[LineUse, ...]
    """At the peak, largest first."""
    kinds: tuple[str, ...]
    """The lines that the picture tells apart."""
    course: StepCourse
    other_devices: Mapping[int, int]
    """Entries of the other cards in the file."""


def is_snapshot(path: Path) -> bool:
    """Whether it looks like one: a pickle of protocol 2 or later."""
    with open_input(path) as file:
        return file.read(1) == b"\x80"


def read_snapshot(
    path: Path, device: int | None = None, progress: Callable[[str], None] = lambda text: None
) -> Snapshot:
    """The card with the longest history, or the one that `device` names."""
    histories: dict[int, History] = {}
    read = 0

    def consume(number: int, entries: list[Entry]) -> None:
        nonlocal read
        histories.setdefault(number, History()).add(entries)
        if (read + len(entries)) // _EVERY_ENTRIES > read // _EVERY_ENTRIES:
            progress(f"{read + len(entries):,} entries")
        read += len(entries)

    with open_input(path) as file:
        document = read_pickle(file, str(path), consume)
    try:
        segments, traces = document["segments"], document["device_traces"]
        by_device = {
            i: histories[trace.number] if isinstance(trace, Consumed) else History() for i, trace in enumerate(traces)
        }
        chosen = _chosen(by_device, segments, device, path)
        own = [segment for segment in segments if segment.get("device", 0) == chosen]
        history = by_device.get(chosen) or History()
        history.end(own)
        others = {i: one.entries for i, one in by_device.items() if i != chosen and one.entries}
        return _made(str(path), chosen, history, own, others)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise UsageError(f"{path}: a pickle, but not one that torch.cuda.memory._dump_snapshot wrote") from None


def _chosen(
    histories: Mapping[int, History], segments: Sequence[Mapping[str, Any]], device: int | None, path: Path
) -> int:
    known = {i for i, one in histories.items() if one.entries} | {segment.get("device", 0) for segment in segments}
    if not known:
        raise UsageError(f"{path}: the snapshot is empty: call torch.cuda.memory._record_memory_history() before")
    if device is not None and device not in known:
        raise UsageError(f"{path}: nothing of card {device} in it, only of {', '.join(map(str, sorted(known)))}")
    return max(known, key=lambda i: histories[i].entries if i in histories else 0) if device is None else device


def _made(
    name: str, device: int, history: History, segments: Sequence[Mapping[str, Any]], others: Mapping[int, int]
) -> Snapshot:
    places = [place(stack) for stack in history.stacks]
    active = history.active
    peak = active.index(max(active))
    alive = [
        block
        for block, (born, died) in enumerate(zip(history.born, history.died, strict=True))
        if born <= peak and not -1 < died <= peak
    ]
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in alive:
        line = places[history.stack[block]].line
        sizes[line] += history.size[block]
        counts[line] += 1
    lines = tuple(LineUse(line, size, counts[line]) for line, size in sizes.most_common())
    kinds = (*(line.line for line in lines[:_NAMED_LINES]), *((OTHER_LINES,) if len(lines) > _NAMED_LINES else ()))
    return Snapshot(
        name=name,
        device=device,
        entries=history.entries,
        refused=history.refused,
        peak_active_bytes=active[peak],
        peak_reserved_bytes=max(history.reserved),
        reserved_at_peak_bytes=history.reserved[peak],
        before_bytes=sum(history.size[block] for block in alive if history.born[block] < 0),
        lines=lines,
        kinds=kinds or (OTHER_LINES,),
        course=_course(history, places, kinds or (OTHER_LINES,), peak, segments),
        other_devices=others,
    )


def _course(
    history: History, places: Sequence[Place], kinds: Sequence[str], peak: int, segments: Sequence[Mapping[str, Any]]
) -> StepCourse:
    most = MOST_POINTS
    number = {kind: i for i, kind in enumerate(kinds)}
    of_stack = [number.get(one.line, len(kinds) - 1) for one in places]
    while True:
        events = _kept(history, peak, most)
        rows = _rows(history, places, of_stack, events)
        if rows is not None and len(rows) > _MOST_ROWS:
            rows = _small_ones_merged(rows)
        if (rows is not None and len(rows) <= _MOST_ROWS) or most <= _FEWEST_POINTS:
            break
        most //= 2
    return StepCourse(
        step=0,
        points=tuple(Point(event, "", "", "", history.active[event], history.reserved[event]) for event in events),
        peak=bisect_left(events, peak),
        rows=tuple(rows or ()),
        events=len(history.active),
        short_lived=0,
        segments=tuple(_segment(segment, number) for segment in segments),
    )


def _kept(history: History, peak: int, most: int) -> list[int]:
    """The highest and the lowest event of each stretch, and the peak."""
    active, n_events = history.active, len(history.active)
    if n_events <= most:
        return list(range(n_events))
    kept = {0, n_events - 1, peak}
    for first, end in pairwise(n_events * i // (most // 2) for i in range(most // 2 + 1)):
        levels = active[first:end]
        kept |= {first + levels.index(max(levels)), first + levels.index(min(levels))}
    return sorted(kept)


def _rows(
    history: History, places: Sequence[Place], of_stack: Sequence[int], events: Sequence[int]
) -> list[Row] | None:
    """Blocks that live through the same points and come from the same place, together. None where that leaves too many:
    fewer points make fewer."""
    found: dict[tuple[int, int, int], list[int]] = {}
    n_points = len(events)
    columns = zip(history.born, history.died, history.size, history.stack, strict=True)
    for born, died, size, stack in columns:
        first = bisect_left(events, born)
        end = n_points if died < 0 else bisect_left(events, died)
        if first < end:
            of_key = found.setdefault((first, end, stack), [0, 0])
            of_key[0] += size
            of_key[1] += 1
            if len(found) > _MOST_KEYS and n_points > _FEWEST_POINTS:
                return None
    return [
        Row(first, end, size, count, of_stack[stack], places[stack].path, places[stack].op, places[stack].line)
        for (first, end, stack), (size, count) in found.items()
    ]


def _small_ones_merged(rows: list[Row]) -> list[Row]:
    """The largest as they are; of the rest those that live equally long and have one colour are one row."""
    rows.sort(key=lambda row: -row.size_bytes)
    merged: dict[tuple[int, int, int], list[int]] = {}
    for row in rows[_MOST_ROWS // 2 :]:
        of_key = merged.setdefault((row.first, row.end, row.kind), [0, 0])
        of_key[0] += row.size_bytes
        of_key[1] += row.count
    return rows[: _MOST_ROWS // 2] + [
        Row(first, end, size, count, kind, "", SEVERAL, "") for (first, end, kind), (size, count) in merged.items()
    ]


def _segment(segment: Mapping[str, Any], number: Mapping[str, int]) -> SegmentCourse:
    def kind(block: Mapping[str, Any]) -> int | None:
        if not str(block["state"]).startswith("active"):
            return None
        return number.get(place(tuple(block.get("frames") or ())).line, len(number) - 1)

    parts: tuple[SegmentPart, ...] = tuple(joined((block["size"], kind(block)) for block in segment["blocks"]))
    return SegmentCourse(
        segment["total_size"], segment.get("segment_type") == "small", int(segment.get("stream", 0)), parts
    )
