"""What is alive at the peaks of several predictions, by kind, module and op: why one needs more than another."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vramcast.memory.prediction import Prediction
from vramcast.memory.step_course import Row, StepCourse, step_course
from vramcast.trace.schema import KINDS

_LAYER = re.compile(r"(^|\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Line:
    """Bytes of one thing at each peak."""

    name: str
    values: tuple[int, ...]

    @property
    def difference(self) -> int:
        """Between the last and the first."""
        return self.values[-1] - self.values[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakTables:
    names: tuple[str, ...]
    device_bytes: tuple[int, ...]
    kinds: tuple[Line, ...]
    """These add up to `device_bytes`; the other tables to what was requested."""
    modules: tuple[Line, ...]
    """Layers of a stack are one line: model.layers.*.mlp."""
    ops: tuple[Line, ...]
    """The op that allocated it, and the kind."""


def peak_tables(predictions: Mapping[str, Prediction]) -> PeakTables:
    """Lines that differ most come first."""
    courses = [step_course(prediction) for prediction in predictions.values()]
    parts = [{part.name: part.size_bytes for part in one.account.parts} for one in predictions.values()]
    return PeakTables(
        names=tuple(predictions),
        device_bytes=tuple(one.device_bytes for one in predictions.values()),
        kinds=_lines(parts),
        modules=_lines(_held(course, lambda row: _LAYER.sub(r"\1*", row.module) or "–") for course in courses),
        ops=_lines(_held(course, lambda row: f"{row.op}, {KINDS[row.kind]}") for course in courses),
    )


def _held(course: StepCourse | None, key: Callable[[Row], str]) -> Mapping[str, int]:
    held: Counter[str] = Counter()
    for row in course.rows if course is not None else ():
        if row.first <= course.peak < row.end:  # type: ignore[union-attr]
            held[key(row)] += row.size_bytes
    return held


def _lines(tables: Iterable[Mapping[str, int]]) -> tuple[Line, ...]:
    tables = list(tables)
    names = dict.fromkeys(name for table in tables for name in table)
    lines = [Line(name, tuple(table.get(name, 0) for table in tables)) for name in names]
    return tuple(sorted((line for line in lines if any(line.values)), key=_spread))


def _spread(line: Line) -> tuple[int, int]:
    return min(line.values) - max(line.values), -max(line.values)


def explained(tables: PeakTables, most: int = 3) -> Sequence[Line]:
    """The kinds that make most of the difference between the last and the first."""
    return sorted(tables.kinds, key=lambda line: -abs(line.difference))[:most]
