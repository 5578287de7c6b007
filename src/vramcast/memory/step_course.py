"""Memory over the step that holds the peak, small enough for a picture and exact at each of its points.

Points are moments of the step. Where a step has more events than a picture has points, it is cut into stretches, and
the highest and the lowest moment of each are kept, and the peak. Blocks that live through the same points and say the
same of themselves are one row, so at every point the rows add up to what was requested, to the byte.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from vramcast.memory.lengthening import lengthened
from vramcast.memory.prediction import Prediction
from vramcast.memory.replay import Replay, replay
from vramcast.trace.schema import KINDS, STEP, StepTrace

MOST_POINTS = 1600
MOST_ROWS = 12_000
_FEWEST_POINTS = 200
SEVERAL = "several ops"
_OTHER = KINDS.index("outputs/other")
"""Taken for the kind of what was freed and waits for another stream."""


@dataclass(frozen=True, slots=True)
class Row:
    """`count` blocks that are alive at the points from `first` up to `end`, which is not one of them."""

    first: int
    end: int
    size_bytes: int
    """Of all of them, as requested."""
    count: int
    kind: int
    module: str
    op: str
    shape: str
    line: str = ""
    """Of the code that had it allocated."""


@dataclass(frozen=True, slots=True)
class Point:
    """A moment, and the allocation at or before it."""

    event: int
    phase: str
    op: str
    module: str
    allocated_bytes: int
    reserved_bytes: int
    line: str = ""


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A stretch of a segment that holds blocks of one kind, or nothing."""

    size_bytes: int
    kind: int | None
    """An index into KINDS; None: free."""


@dataclass(frozen=True, slots=True)
class SegmentCourse:
    """What PyTorch got from the driver in one piece."""

    size_bytes: int
    is_small: bool
    stream: int
    parts: tuple[SegmentPart, ...]


@dataclass(frozen=True, slots=True)
class StepCourse:
    step: int
    """Counted from 0."""
    points: tuple[Point, ...]
    peak: int
    """The point that the account is of."""
    rows: tuple[Row, ...]
    events: int
    """How many the step has."""
    short_lived: int
    """Blocks that are alive at none of the points."""
    segments: tuple[SegmentCourse, ...]
    """At the peak; empty where they were not asked for."""


def step_course(
    prediction: Prediction, most_points: int = MOST_POINTS, most_rows: int = MOST_ROWS
) -> StepCourse | None:
    """None where the prediction does not have its trace."""
    if prediction.trace is None:
        return None
    # As `predict` does: what fits is shown under the limit, what does not as it would be without one.
    limit = prediction.limit_bytes - prediction.context_bytes if prediction.out_of_memory is None else None
    shown = replay(lengthened(prediction.trace), prediction.allocator_conf, limit)
    course = course_without_segments(prediction, shown, most_points, most_rows)
    return replace(course, segments=_segments(shown, prediction.account.moment.event))


def course_without_segments(
    prediction: Prediction, shown: Replay, most_points: int = MOST_POINTS, most_rows: int = MOST_ROWS
) -> StepCourse:
    """`shown` is the replay that the prediction's account is of. Where blocks lie would take another replay."""
    peak = prediction.account.moment.event
    window = _step_around(shown.trace, peak, shown.n_events)
    while True:
        events = _kept(shown, window, peak, most_points)
        rows, short_lived = _rows(shown, window, events)
        if len(rows) > most_rows:
            rows = _coarser(rows, most_rows)
        if len(rows) <= most_rows or most_points <= _FEWEST_POINTS:
            break
        most_points //= 2
    return StepCourse(
        step=prediction.account.moment.step,
        points=_points(shown, events),
        peak=bisect_left(events, peak),
        rows=tuple(rows),
        events=len(window),
        short_lived=short_lived,
        segments=(),
    )


def _step_around(trace: StepTrace, event: int, n_events: int) -> range:
    ends = [e + 1 for e in range(n_events) if trace.event_kind[e] == STEP]
    after = bisect_left(ends, event + 1)
    return range(ends[after - 1] if after else 0, ends[after] if after < len(ends) else n_events)


def _kept(run: Replay, window: range, peak: int, most: int) -> list[int]:
    """The events that become points."""
    if len(window) <= most:
        return list(window)
    stretches = most // 2
    bounds = [window.start + len(window) * i // stretches for i in range(stretches + 1)]
    kept = {window.start, window.stop - 1, peak}
    for first, end in pairwise(bounds):
        levels = run.allocated_bytes[first:end]
        kept |= {first + levels.index(max(levels)), first + levels.index(min(levels))}
        held = run.reserved_bytes[first:end]
        if len(set(held)) > 1:
            kept.add(first + held.index(max(held)))
    return sorted(kept)


def _rows(run: Replay, window: range, events: Sequence[int]) -> tuple[list[Row], int]:
    trace, n_points = run.trace, len(events)
    found: dict[tuple[int, ...], list[int]] = {}
    short_lived = 0
    for block, (born, died) in enumerate(zip(trace.born_event, trace.died_event, strict=True)):
        if born >= window.stop:
            break
        if -1 < died <= window.start or block in run.refused_blocks or not trace.requested_bytes[block]:
            continue
        first = bisect_left(events, born)
        end = n_points if died == -1 else bisect_left(events, died)
        if first >= end:
            short_lived += 1
            continue
        key = first, end, trace.kind[block], trace.module[block], trace.op[block], trace.shape[block]
        of_key = found.setdefault(key, [0, 0])
        of_key[0] += trace.requested_bytes[block]
        of_key[1] += 1
    lines = trace.line_of()
    rows = [
        Row(
            first,
            end,
            size,
            count,
            kind,
            trace.modules[module],
            trace.ops[op],
            trace.shapes[shape],
            lines.get((op, module), ""),
        )
        for (first, end, kind, module, op, shape), (size, count) in found.items()
    ]
    return rows, short_lived


def _coarser(rows: Sequence[Row], most: int) -> list[Row]:
    """The largest as they are; of the rest those of one module that live equally long are one row."""
    ordered = sorted(rows, key=lambda row: -row.size_bytes)
    kept, small = ordered[: most // 2], ordered[most // 2 :]
    merged: dict[tuple[int, int, int, str], Row] = {}
    for row in small:
        key = row.first, row.end, row.kind, row.module
        known = merged.get(key)
        if known is None:
            merged[key] = row
        else:
            merged[key] = replace(
                known, size_bytes=known.size_bytes + row.size_bytes, count=known.count + row.count,
                op=known.op if known.op == row.op else SEVERAL, shape="",
                line=known.line if known.line == row.line else "",
            )  # fmt: skip
    return kept + list(merged.values())


def _points(run: Replay, events: Sequence[int]) -> tuple[Point, ...]:
    trace = run.trace
    lines = {(trace.ops[op], trace.modules[module]): line for (op, module), line in trace.line_of().items()}
    moments = (run.moment(event) for event in events)
    return tuple(
        Point(
            at.event,
            at.phase,
            at.op,
            at.module,
            at.allocated_bytes,
            at.reserved_bytes,
            lines.get((at.op, at.module), ""),
        )
        for at in moments
    )


def _segments(shown: Replay, event: int) -> tuple[SegmentCourse, ...]:
    """Replayed once more up to the event, since a replay knows where things lie at its end only."""
    trace = shown.trace
    until = trace.changed(event_kind=trace.event_kind[: event + 1], event_arg=trace.event_arg[: event + 1])
    run = replay(until, shown.conf, shown.capacity_bytes, with_layout=True)
    kind_at = {run.addresses[block]: trace.kind[block] for block in shown.live_blocks(event)}
    made = []
    for segment in run.segments:
        parts = (
            (one.size_bytes, kind_at.get(one.address, _OTHER) if one.allocated else None) for one in segment.blocks
        )
        made.append(SegmentCourse(segment.size_bytes, segment.pool == "small", segment.stream, tuple(joined(parts))))
    return tuple(made)


def joined(parts: Iterator[tuple[int, int | None]]) -> Iterator[SegmentPart]:
    """Neighbours of one kind as one part."""
    size, kind = 0, None
    for size_bytes, of_kind in parts:
        if size and of_kind != kind:
            yield SegmentPart(size, kind)
            size = 0
        size, kind = size + size_bytes, of_kind
    if size:
        yield SegmentPart(size, kind)
