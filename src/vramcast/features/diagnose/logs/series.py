"""Figures that come one after another, in constant memory: medians, the largest, and how they change."""

from __future__ import annotations

import heapq
import statistics
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

CAPACITY = 1 << 14
_MOST_LARGEST = 32


@dataclass(frozen=True, slots=True, order=True)
class Point:
    value: float
    line: int
    step: int
    """-1: not known."""


@dataclass(slots=True)
class Series:
    """Keeps the first values as they are, every 2ᵏ-th of all, and the largest."""

    count: int = 0
    total: float = 0.0
    first: list[Point] = field(default_factory=list)
    """The first CAPACITY, none left out: what comes back every N steps shows here."""
    largest: list[Point] = field(default_factory=list)
    _values: array[float] = field(default_factory=lambda: array("d"))
    _stride: int = 1
    last: Point | None = None

    def add(self, value: float, line: int = 0, step: int | None = None) -> None:
        point = Point(value, line, -1 if step is None else step)
        self.last = point
        if len(self.first) < CAPACITY:
            self.first.append(point)
        if len(self.largest) < _MOST_LARGEST:
            heapq.heappush(self.largest, point)
        elif value > self.largest[0].value:
            heapq.heapreplace(self.largest, point)
        if self.count % self._stride == 0:
            self._values.append(value)
            if len(self._values) >= 2 * CAPACITY:
                self._values = self._values[::2]
                self._stride *= 2
        self.count += 1
        self.total += value

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def values(self) -> Sequence[float]:
        """The values in order, from the beginning to the end, thinned out where there are many."""
        return self._values

    @property
    def median(self) -> float:
        return statistics.median(self._values)


def spread(values: Sequence[float]) -> float:
    """Median distance from the median."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)
