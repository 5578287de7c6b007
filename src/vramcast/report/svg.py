"""Memory over the step as one SVG picture: the report's chart for a document or a slide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

from rich.cells import cell_len

from vramcast.base.language import language, say
from vramcast.base.language import name as named
from vramcast.base.units import GIB, format_gib
from vramcast.memory import Prediction
from vramcast.memory.account import CONTEXT, FRAGMENTATION, ROUNDING
from vramcast.memory.step_course import StepCourse
from vramcast.report.wording import verdict
from vramcast.trace.schema import KINDS

# The same as in web/common.js, from below.
COLOURS = {
    CONTEXT: "#9aa6b2", "weights": "#7fb0e6", "buffers": "#b3bdc8", "gradients": "#f2a765",
    "optimizer state": "#b79ae0", "autocast copies": "#e99bbb", "inputs": "#5fcaca", "saved activations": "#6cc58e",
    "outputs/other": "#bcc46a", "workspaces": "#cfa980", "temporaries": "#f2cd55", ROUNDING: "#d8d8d8",
    FRAGMENTATION: "#c9bcbc",
}  # fmt: skip
_WIDTH, _HEIGHT = 1000, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 190, 60, 50
_LETTER = 8
"""Pixels that a letter takes at most."""
# By name, since programs that draw SVG need not know which fonts "sans-serif" stands for.
_CHINESE_FONTS = "Noto Sans CJK SC, PingFang SC, Microsoft YaHei"
_FONTS = "Noto Sans, DejaVu Sans, Arial, Helvetica, sans-serif"
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)


def step_svg(course: StepCourse, prediction: Prediction) -> str:
    levels = stacked(course, prediction)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    highest = max(prediction.limit_bytes, max(levels[FRAGMENTATION])) * 1.04
    first = course.points[0].event
    span = max(1, course.points[-1].event - first)
    x = [_LEFT + width * (point.event - first) / span for point in course.points]

    def y(size_bytes: float) -> float:
        return _TOP + height * (1 - size_bytes / highest)

    fonts = f"{_CHINESE_FONTS}, {_FONTS}" if language() == "zh" else _FONTS
    shown = [name for name in COLOURS if any(_thickness(levels, name))]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="{fonts}" '
        f'font-size="13" role="img"><title>{escape(verdict(prediction))}</title>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="17" font-weight="bold">{escape(verdict(prediction))}</text>',
    ]
    parts += [
        f'<path fill="{COLOURS[name]}" d="{_area(x, [y(level) for level in levels[name]], y(0))}"/>'
        for name in reversed(shown)
    ]
    step = next((tick for tick in _TICKS if highest / GIB / tick <= 6), 1000)
    for number in range(int(highest / GIB / step) + 1):
        at = y(number * step * GIB)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_LEFT + width}" stroke="#0002"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{number * step:g}</text>')
    parts.append(f'<text x="{_LEFT - 8}" y="{_TOP - 12}" text-anchor="end">GiB</text>')
    limit = y(prediction.limit_bytes)
    parts.append(f'<path d="M{_LEFT} {limit:.1f}H{_LEFT + width}" stroke="#a40e26" stroke-width="2"/>')
    text = say("limit {size}", size=format_gib(prediction.limit_bytes))
    parts.append(f'<text x="{_LEFT + width}" y="{limit - 5:.1f}" text-anchor="end" fill="#a40e26">{text}</text>')
    peak, top = x[course.peak], y(prediction.account.device_bytes)
    parts.append(f'<path d="M{peak:.1f} {top:.1f}l-6 -10h12z"/>')
    for place, name in enumerate(reversed(shown)):
        at = _TOP + 20 * place
        parts.append(f'<rect x="{_LEFT + width + 14}" y="{at}" width="12" height="12" fill="{COLOURS[name]}"/>')
        parts.append(f'<text x="{_LEFT + width + 32}" y="{at + 11}">{escape(named(name))}</text>')
    parts += _phases(course, x, _TOP + height)
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{say("allocations and frees in the step")}</text></svg>')
    return "\n".join(parts) + "\n"


def _phases(course: StepCourse, x: Sequence[float], bottom: float) -> Iterator[str]:
    """Where each begins, and its name below the axis where there is room."""
    begins = [i for i, point in enumerate(course.points) if not i or point.phase != course.points[i - 1].phase]
    for begin, end in pairwise([*begins, len(x) - 1]):
        yield f'<path d="M{x[begin]:.1f} {_TOP}V{bottom + 16:.1f}" stroke="#0006" stroke-dasharray="2 3"/>'
        text = named(course.points[begin].phase)
        if x[end] - x[begin] > _LETTER * cell_len(text):
            yield f'<text x="{x[begin] + 4:.1f}" y="{bottom + 15:.1f}" fill="#57606a">{escape(text)}</text>'


def stacked(course: StepCourse, prediction: Prediction) -> dict[str, list[int]]:
    """By name in the order of COLOURS, the upper edge of its area at each point."""
    parts = {name: [0] * len(course.points) for name in COLOURS}
    for row in course.rows:
        column = parts[KINDS[row.kind]]
        for point in range(row.first, row.end):
            column[point] += row.size_bytes
    requested = [sum(column) for column in zip(*parts.values(), strict=True)]
    parts[CONTEXT] = [prediction.context_bytes] * len(course.points)
    parts[ROUNDING] = [p.allocated_bytes - size for p, size in zip(course.points, requested, strict=True)]
    parts[FRAGMENTATION] = [p.reserved_bytes - p.allocated_bytes for p in course.points]
    below = [0] * len(course.points)
    levels: dict[str, list[int]] = {}
    for name, column in parts.items():
        below = levels[name] = [a + b for a, b in zip(below, column, strict=True)]
    return levels


def _thickness(levels: dict[str, list[int]], name: str) -> list[int]:
    names = list(levels)
    place = names.index(name)
    below = levels[names[place - 1]] if place else [0] * len(levels[name])
    return [a - b for a, b in zip(levels[name], below, strict=True)]


def _area(x: Sequence[float], y: Sequence[float], bottom: float) -> str:
    """Steps: a level holds until the next point."""
    steps = [f"M{x[0]:.1f} {bottom:.1f}V{y[0]:.1f}"]
    last = y[0]
    for across, level in zip(x[1:], y[1:], strict=True):
        if f"{level:.1f}" != f"{last:.1f}":
            steps.append(f"H{across:.1f}V{level:.1f}")
            last = level
    return "".join(steps) + f"H{x[-1]:.1f}V{bottom:.1f}Z"
