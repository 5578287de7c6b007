"""Memory against speed as a picture: ways to run a job, and the front that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from vramcast.base.language import say
from vramcast.base.units import GIB, format_gib
from vramcast.report.wording import rate

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 14, 44
_TICKS = 5


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
    """An SVG that follows the page's theme; nothing where there is nothing to choose between."""
    if len(ways) < 2:
        return ""
    most_bytes = max(limit_bytes, *(way.size_bytes for way in ways)) * 1.05
    most_rate = max(way.samples_per_second for way in ways) * 1.12
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(size_bytes: float) -> float:
        return _LEFT + width * size_bytes / most_bytes

    def y(samples_per_second: float) -> float:
        return _TOP + height * (1 - samples_per_second / most_rate)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(say("memory against speed"))}" '
        f'style="max-width:{_WIDTH}px;width:100%" font-size="12" fill="currentColor">'
    ]
    for tick in range(_TICKS + 1):
        size, speed = most_bytes * tick / _TICKS, most_rate * tick / _TICKS
        parts.append(
            f'<text x="{x(size):.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{size / GIB:.1f}</text>'
            f'<text x="{_LEFT - 8}" y="{y(speed) + 4:.1f}" text-anchor="end">{rate(speed) if tick else 0}</text>'
            f'<path d="M{_LEFT} {y(speed):.1f}H{_LEFT + width}" stroke="currentColor" opacity="0.15"/>'
        )
    parts.append(f'<text x="{_LEFT + width}" y="{_HEIGHT - 8}" text-anchor="end">GiB</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{escape(say("samples/s, upwards"))}</text>')
    limit = x(limit_bytes)
    parts.append(f'<path d="M{limit:.1f} {_TOP}V{_TOP + height}" stroke="#d1242f" stroke-width="2"/>')
    steps = "L".join(f"{x(way.size_bytes):.1f} {y(way.samples_per_second):.1f}" for way in front(ways))
    parts.append(f'<path d="M{steps}" fill="none" stroke="currentColor" stroke-dasharray="4 3"/>')
    for way in ways:
        title = f"{way.label}: {format_gib(way.size_bytes)}, {rate(way.samples_per_second)} samples/s"
        colour = "#2da44e" if way.fits else "#f08a80"
        parts.append(
            f'<circle cx="{x(way.size_bytes):.1f}" cy="{y(way.samples_per_second):.1f}" r="6" fill="{colour}" '
            f'stroke="currentColor"><title>{escape(title)}</title></circle>'
        )
    return "".join(parts) + "</svg>"
