"""The account as a picture of letters: bars by kind, the step as a line of blocks, modules as a tree to a depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from vramcast.base.language import name as named
from vramcast.base.language import say
from vramcast.base.units import format_gib
from vramcast.memory import Prediction
from vramcast.memory.account import largest
from vramcast.memory.step_course import Point, StepCourse, step_course
from vramcast.report.grid import padded, shortened
from vramcast.report.module_rows import NO_MODULE, module_rows
from vramcast.report.wording import percent, place, verdict

USUAL_DEPTH = 3
_MOST_MODULES = 200
_WIDEST_LABEL = 44
_MOST_COLUMNS = 160


@dataclass(frozen=True, slots=True)
class Letters:
    bar: str
    levels: str
    """From the lowest level to the highest."""
    peak: str
    cut: str
    """Where a name is cut short."""


BLOCKS = Letters("█", "▁▂▃▄▅▆▇█", "▼", "…")
ASCII = Letters("#", "_.-:=+*#", "v", "~")


def picture_lines(prediction: Prediction, width: int, *, depth: int = USUAL_DEPTH, plain: bool = False) -> list[str]:
    letters = ASCII if plain else BLOCKS
    dots = "..." if plain else "…"
    account = prediction.account
    kinds = [(named(part.name), part.size_bytes) for part in largest(account.parts)]
    modules = [
        (
            "  " * row.depth + (named(row.label) if row.label == NO_MODULE else row.label.replace("…", dots)),
            row.size_bytes,
        )
        for row in module_rows(account.modules, most=_MOST_MODULES, depth=depth)
    ]
    lines = [verdict(prediction), say("peak at {place}", place=place(account.moment)), ""]
    lines += [*_bars(kinds, account.device_bytes, width, letters), ""]
    course = step_course(prediction)
    if course is not None:
        lines += [*_step(course, prediction, width, letters), ""]
    lines += _bars(modules, account.device_bytes, width, letters)
    return [line.rstrip() for line in lines]


def _bars(rows: Sequence[tuple[str, int]], whole_bytes: int, width: int, letters: Letters) -> Iterator[str]:
    """One a line; the longest fills the width."""
    label_width = min(_WIDEST_LABEL, max((cell_len(label) for label, _ in rows), default=0))
    most = max((size for _, size in rows), default=0)
    for label, size in rows:
        figures = f"{format_gib(size):>11}  {percent(size, whole_bytes):>7}  "
        room = max(0, min(width, _MOST_COLUMNS) - label_width - 1 - len(figures))
        bar = letters.bar * (round(room * size / most) if most else 0)
        shown = shortened(label, label_width).replace("…", letters.cut)
        yield f"{padded(shown, label_width)} {figures}{bar}"


def _step(course: StepCourse, prediction: Prediction, width: int, letters: Letters) -> Iterator[str]:
    """Allocated memory from nothing to the peak, each block the highest of its stretch; its phases below it."""
    columns = _columns(course.points, min(width, _MOST_COLUMNS))
    most = max(point.allocated_bytes for point in course.points)
    peak = next(i for i, points in enumerate(columns) if course.points[course.peak] in points)
    top = len(letters.levels) - 1
    yield " " * peak + letters.peak
    highest = (max(point.allocated_bytes for point in points) for points in columns)
    yield "".join(letters.levels[top * level // most if most else 0] for level in highest)
    yield _phases([points[0].phase for points in columns])
    text = "step {step}: {least} to {most} allocated, limit {limit}"
    yield say(
        text,
        step=course.step + 1,
        least=format_gib(min(point.allocated_bytes for point in course.points)),
        most=format_gib(most),
        limit=format_gib(prediction.limit_bytes),
    )


def _columns(points: Sequence[Point], width: int) -> list[list[Point]]:
    """By their place in the step; a stretch without a point of its own goes on as the one before."""
    first, count = points[0].event, points[-1].event - points[0].event + 1
    n = max(1, min(width, count))
    columns: list[list[Point]] = [[] for _ in range(n)]
    for point in points:
        columns[(point.event - first) * n // count].append(point)
    for i, column in enumerate(columns):
        if not column:
            columns[i] = columns[i - 1][-1:]
    return columns


def _phases(phases: Sequence[str]) -> str:
    """The name of each where it begins, if there is room for it."""
    line, begin = "", 0
    for i in range(1, len(phases) + 1):
        if i == len(phases) or phases[i] != phases[begin]:
            text = "|" + named(phases[begin])
            line += padded(text if cell_len(text) < i - begin else "|", i - begin)
            begin = i
    return line
