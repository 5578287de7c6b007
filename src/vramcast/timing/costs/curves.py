"""What real kernels take beyond the ideal ones: for each kind, curves over its size and other quantities.

    log2(time) = log2(base) + curve(log2 base in µs) + curve(log2 of each feature) + an offset for each tag

The curve over the size carries the launch: below its first knot the time no longer shrinks, unless nothing so small was
measured that a launch would show; then, and above its last knot, the share of the ideal stays as it is. All are
dimensionless, so that they carry over to another card with its own ideal times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp2, log2
from typing import Any

from vramcast.timing.costs.part import Part

SIZE = "size"
_MICROSECOND = 1e-6
_LARGEST_LOG = 100.0
"""2^100 is more than any share of a time."""
_LAUNCH_SHOWS = 3.0
"""Kernels of more than 2^3 µs take hardly longer for being launched."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Straight lines between knots."""

    knots: tuple[float, ...]
    values: tuple[float, ...]

    def at(self, x: float, *, slope_below: float = 0.0) -> float:
        knots, values = self.knots, self.values
        if x <= knots[0]:
            return values[0] + slope_below * (x - knots[0])
        if x >= knots[-1]:
            return values[-1]
        place = bisect_right(knots, x)
        low, high = knots[place - 1], knots[place]
        share = (x - low) / (high - low)
        return values[place - 1] * (1 - share) + values[place] * share


def size_of(part: Part) -> float:
    return log2(max(part.base, 1e-12) / _MICROSECOND)


@dataclass(frozen=True, slots=True)
class KindModel:
    """The curves of one kind of kernel."""

    size: Curve
    features: Mapping[str, Curve] = field(default_factory=dict)
    tags: Mapping[str, float] = field(default_factory=dict)
    spread: float = 0.0
    """Half of the measured kernels lie within this of the curve, in log2."""
    launches: Curve = Curve((0.0,), (1.0,))
    """Kernels that are launched over those that the kind's rule counts, by the size: libraries clear and split what is
    large."""

    def launched(self, part: Part) -> float:
        return part.kernels * self.launches.at(size_of(part))

    def seconds(self, part: Part) -> float:
        x = size_of(part)
        exponent = x + self.size.at(x, slope_below=-1.0 if self.size.knots[0] <= _LAUNCH_SHOWS else 0.0)
        for name, value in part.features:
            curve = self.features.get(name)
            if curve is not None:
                exponent += curve.at(value)
        for tag in part.tags:
            exponent += self.tags.get(tag, 0.0)
        return exp2(exponent) * _MICROSECOND

    def to_data(self) -> dict[str, Any]:
        return {
            "size": _curve_data(self.size),
            "features": {name: _curve_data(curve) for name, curve in self.features.items()},
            "tags": {tag: round(value, 3) for tag, value in self.tags.items() if abs(value) >= 0.0005},
            "spread": round(self.spread, 3),
            "launches": _curve_data(self.launches),
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> KindModel:
        return cls(
            size=_curve(data["size"]),
            features={str(name): _curve(curve) for name, curve in data["features"].items()},
            tags={str(tag): _figure(value) for tag, value in data["tags"].items()},
            spread=_figure(data.get("spread", 0.0), least=0.0),
            launches=_launches(data.get("launches", 1.0)),
        )


def _launches(data: Any) -> Curve:
    """A curve, or one number for all sizes, as earlier calibrations have it."""
    pairs = data if isinstance(data, list) else [[0.0, data]]
    return _curve([[knot, _figure(value, least=0.0, most=1e6)] for knot, value in pairs], most=1e6)


def _curve_data(curve: Curve) -> list[list[float]]:
    return [[round(knot, 3), round(value, 3)] for knot, value in zip(curve.knots, curve.values, strict=True)]


def _figure(value: Any, least: float = -_LARGEST_LOG, most: float = _LARGEST_LOG) -> float:
    """A number of a file, which may hold anything."""
    figure = float(value)
    if not least <= figure <= most:
        raise ValueError(f"{figure:g} is not from {least:g} to {most:g}")
    return figure


def _curve(data: Sequence[Sequence[float]], most: float = _LARGEST_LOG) -> Curve:
    knots = tuple(_figure(knot) for knot, _ in data)
    values = tuple(_figure(value, most=most) for _, value in data)
    if not knots or any(later <= earlier for earlier, later in pairwise(knots)):
        raise ValueError("a curve's knots must rise")
    return Curve(knots, values)
