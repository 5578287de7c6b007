"""The data of a report's pictures, as compact columns that its scripts read (web/*.js)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vramcast.memory import Prediction
from vramcast.memory.step_course import SegmentCourse, StepCourse, step_course
from vramcast.timing import predict_step
from vramcast.timing.lanes import Bar, Lanes, lanes
from vramcast.trace.schema import KINDS

_MICRO = 1e6


def pictures(prediction: Prediction) -> dict[str, Any]:
    """What is drawn of one prediction; nothing where its trace is not at hand."""
    course = step_course(prediction)
    return {
        "course": None if course is None else course_columns(course, prediction.context_bytes, prediction.limit_bytes),
        "lanes": _lanes_of(prediction),
    }


def course_columns(
    course: StepCourse, context_bytes: int, limit_bytes: int, kinds: Sequence[str] = KINDS
) -> dict[str, Any]:
    """`kinds` are what the rows' kinds count in. A limit of 0 is not drawn."""
    phases, ops, modules, shapes, lines = _Table(), _Table(), _Table(), _Table(), _Table()
    points, rows = course.points, course.rows
    return {
        "step": course.step,
        "peak": course.peak,
        "events": course.events,
        "context": context_bytes,
        "limit": limit_bytes,
        "kinds": list(kinds),
        "points": {
            "event": [point.event for point in points],
            "phase": phases.numbers(point.phase for point in points),
            "op": ops.numbers(point.op for point in points),
            "module": modules.numbers(point.module for point in points),
            "line": lines.numbers(point.line for point in points),
            "allocated": [point.allocated_bytes for point in points],
            "reserved": [point.reserved_bytes for point in points],
        },
        "rows": {
            "first": [row.first for row in rows],
            "end": [row.end for row in rows],
            "size": [row.size_bytes for row in rows],
            "count": [row.count for row in rows],
            "kind": [row.kind for row in rows],
            "module": modules.numbers(row.module for row in rows),
            "op": ops.numbers(row.op for row in rows),
            "shape": shapes.numbers(row.shape for row in rows),
            "line": lines.numbers(row.line for row in rows),
        },
        "segments": [_segment(segment) for segment in course.segments],
        "phases": phases.names,
        "ops": ops.names,
        "modules": modules.names,
        "shapes": shapes.names,
        "lines": lines.names,
    }


def _segment(segment: SegmentCourse) -> list[int]:
    """Pool and stream, then size and kind of each part; -1 is free."""
    parts = ((part.size_bytes, -1 if part.kind is None else part.kind) for part in segment.parts)
    return [int(segment.is_small), segment.stream, *(figure for pair in parts for figure in pair)]


def _lanes_of(prediction: Prediction) -> dict[str, Any] | None:
    if prediction.trace is None or prediction.time is None:
        return None
    time = predict_step(prediction.trace, prediction.gpu, keep_rows=True)
    return None if time is None or time.rows is None else lane_columns(lanes(time.rows))


def lane_columns(found: Lanes) -> dict[str, Any] | None:
    """Seconds from the beginning of the first op, to the microsecond."""
    every = (*found.phases, *found.host, *found.card)
    if not every:
        return None
    origin = min(bar.begin_seconds for bar in every)
    labels = _Table()
    return {
        "seconds": max(bar.end_seconds for bar in every) - origin,
        "phases": _bars(found.phases, origin, labels),
        "host": _bars(found.host, origin, labels),
        "card": _bars(found.card, origin, labels),
        "before": _rounded(max(0.0, found.before_seconds - origin)),
        "labels": labels.names,
    }


def _bars(bars: Sequence[Bar], origin: float, labels: _Table) -> dict[str, Any]:
    return {
        "begin": [_rounded(bar.begin_seconds - origin) for bar in bars],
        "end": [_rounded(bar.end_seconds - origin) for bar in bars],
        "busy": [_rounded(bar.busy_seconds) for bar in bars],
        "label": labels.numbers(bar.label for bar in bars),
        "ops": [bar.ops for bar in bars],
    }


def _rounded(seconds: float) -> float:
    return round(seconds * _MICRO) / _MICRO


class _Table:
    """Names, each once, and their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, names: Iterable[str]) -> list[int]:
        return [self._numbers.setdefault(name, len(self._numbers)) for name in names]

    @property
    def names(self) -> list[str]:
        return list(self._numbers)
