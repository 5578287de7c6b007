"""Memory against speed as a picture: ways to run a job, and the front that no other beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vramcast.base.language import say, sentence
from vramcast.base.units import GIB, format_gib
from vramcast.report.wording import rate

_WIDTH, _HEIGHT = 520, 290
_MOST_PIXELS = 620
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 44, 30, 46
_TICKS = 5
_ROUND = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the job."""

    label: str
    size_bytes: int
    samples_per_second: float
    fits: bool


def front(ways: Sequence[Way]) -> list[Way]:
    """Those that fit and that no other beats in both, least memory first."""
    ordered = sorted((way for way in ways if way.fits), key=lambda way: (way.size_bytes, -way.samples_per_second))
    found: list[Way] = []
    for way in ordered:
        if not found or way.samples_per_second > found[-1].samples_per_second:
            found.append(way)
    return found


def front_picture(ways: Sequence[Way], limit_bytes: int) -> str:
    """An SVG that follows the page's theme, and the front as a list with the numbers of its dots; nothing where there
    is nothing to choose between."""
    if len(ways) < 2:
        return ""
    size_step = _tick_step(max(limit_bytes, *(way.size_bytes for way in ways)) / GIB)
    rate_step = _tick_step(max(way.samples_per_second for way in ways))
    most_gib, most_rate = size_step * _TICKS, rate_step * _TICKS
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(gib: float) -> float:
        return _LEFT + width * gib / most_gib

    def y(samples_per_second: float) -> float:
        return _TOP + height * (1 - samples_per_second / most_rate)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(say("memory against speed"))}" '
        f'style="max-width:{_MOST_PIXELS}px;width:100%" font-size="13" fill="currentColor">',
        f'<text x="4" y="14">{escape(sentence("samples/s"))}</text>',
        f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 6}" text-anchor="middle">'
        f"{escape(say('needed on the card'))}, GiB</text>",
    ]
    for tick in range(_TICKS + 1):
        gib, speed = size_step * tick, rate_step * tick
        parts.append(
            f'<text x="{x(gib):.1f}" y="{_HEIGHT - 26}" text-anchor="middle">{gib:g}</text>'
            f'<text x="{_LEFT - 8}" y="{y(speed) + 4:.1f}" text-anchor="end">{speed:g}</text>'
            f'<path d="M{_LEFT} {y(speed):.1f}H{_LEFT + width}" stroke="currentColor" opacity="0.15"/>'
        )
    limit, text = x(limit_bytes / GIB), say("limit {size}", size=format_gib(limit_bytes))
    parts.append(
        f'<path d="M{limit:.1f} {_TOP}V{_TOP + height}" stroke="#d1242f" stroke-width="2"/>'
        f'<text class="bad" fill="currentColor" x="{limit:.1f}" y="14" text-anchor="middle">{escape(text)}</text>'
    )
    best = front(ways)
    if len(best) > 1:
        steps = "L".join(f"{x(way.size_bytes / GIB):.1f} {y(way.samples_per_second):.1f}" for way in best)
        parts.append(f'<path d="M{steps}" fill="none" stroke="currentColor" stroke-dasharray="4 3"/>')
    for way in sorted(ways, key=lambda way: way in best):
        place = f'cx="{x(way.size_bytes / GIB):.1f}" cy="{y(way.samples_per_second):.1f}"'
        title = f"<title>{escape(_said(way))}</title>"
        if way not in best:
            colour = "#2da44e" if way.fits else "#f08a80"
            parts.append(f'<circle {place} r="5" fill="{colour}" stroke="currentColor">{title}</circle>')
            continue
        place_of_number = f'x="{x(way.size_bytes / GIB):.1f}" y="{y(way.samples_per_second) + 4:.1f}"'
        parts.append(
            f'<g>{title}<circle {place} r="9" fill="#6cc58e" stroke="currentColor"/>'
            f'<text {place_of_number} text-anchor="middle" font-size="12" fill="#111">{best.index(way) + 1}</text></g>'
        )
    listed = "".join(f"<li>{escape(_said(way))}</li>" for way in best)
    return "".join(parts) + "</svg>" + (f'<ol class="wrap">{listed}</ol>' if best else "")


def _said(way: Way) -> str:
    pace = f"{rate(way.samples_per_second)} {sentence('samples/s')}"
    return f"{sentence(way.label)}: {format_gib(way.size_bytes)}, {pace}"


def _tick_step(most: float) -> float:
    """A round step, so that `_TICKS` of them reach what is most."""
    least = most / _TICKS
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in _ROUND if power * digit >= least * (1 - 1e-9))
