"""Curves for each kind of kernel, from measured operators.

Least squares on the logarithm, made robust by weighing down what lies far off; second differences of a curve and the
offsets of tags are held small, so that what was seldom measured stays near its kind. An operator of several parts gives
each part the share of the measured time that the curves of the round before give it. Plain Python: it runs where a card
is calibrated, with nothing installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log2

from vramcast.timing.costs.curves import SIZE, Curve, KindModel, size_of
from vramcast.timing.costs.part import Part

_ROUNDS = 4
_ROBUST_ROUNDS = 4
_KNOT_STEP = {SIZE: 1.5}
_DEFAULT_KNOT_STEP = 1.5
_SMOOTHNESS = 1.0
_FEATURE_RIDGE = 0.05
_TAG_RIDGE = 0.3
_ROBUST_SCALE = 0.12
_SMALLEST_SIZE = -10.0
_LAUNCHES_KNOT_STEP = 3.0
_DRAWN = 3.0
"""Rows that the mean of a kind counts as, where the kernels of one size are looked at."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured operator: its parts, its time, and how much it counts."""

    parts: Sequence[Part]
    seconds: float
    weight: float = 1.0
    kernels: int = 0
    """How many it launched, copies and fills included; 0 where that is not known."""


def fit(samples: Iterable[Sample], start: dict[str, KindModel] | None = None) -> dict[str, KindModel]:
    """A model for each kind that the samples have."""
    known = [sample for sample in samples if sample.parts and sample.seconds > 0]
    models: dict[str, KindModel] = dict(start or {})
    for _ in range(_ROUNDS):
        rows: dict[str, list[tuple[Part, float, float]]] = {}
        for sample in known:
            guesses = [_guess(models, part) for part in sample.parts]
            total = sum(guesses)
            for part, guess in zip(sample.parts, guesses, strict=True):
                share = guess / total
                rows.setdefault(part.kind, []).append((part, sample.seconds * share, sample.weight * share))
        models = {kind: _fit_kind(samples_of_kind) for kind, samples_of_kind in rows.items()}
        if all(len(sample.parts) == 1 for sample in known):
            break
    launches = _launches(known)
    return {kind: replace(model, launches=launches.get(kind, model.launches)) for kind, model in models.items()}


def _launches(samples: Sequence[Sample]) -> dict[str, Curve]:
    """For each kind and size, kernels that were launched over those that its rule counts: libraries clear, split and
    add up as they see fit. An operator of several parts shares its kernels out as the round before says."""
    curves: dict[str, Curve] = {}
    for _ in range(_ROUNDS):
        found: dict[str, list[tuple[float, float, float]]] = {}
        for sample in samples:
            factors = [curves[part.kind].at(size_of(part)) if part.kind in curves else 1.0 for part in sample.parts]
            together = sum(part.kernels * factor for part, factor in zip(sample.parts, factors, strict=True))
            if not sample.kernels or not together:
                continue
            for part, factor in zip(sample.parts, factors, strict=True):
                size = max(size_of(part), _SMALLEST_SIZE)
                found.setdefault(part.kind, []).append((size, factor * sample.kernels / together, float(part.kernels)))
        curves = {kind: _mean_by_size(rows) for kind, rows in found.items() if any(weight for *_, weight in rows)}
    return curves


def _mean_by_size(rows: Sequence[tuple[float, float, float]]) -> Curve:
    """Weighted means around knots, from (size, value, weight). A knot with few rows is drawn to the mean of all."""
    mean = sum(value * weight for _, value, weight in rows) / sum(weight for *_, weight in rows)
    knots = _knots([size for size, _, _ in rows], _LAUNCHES_KNOT_STEP)
    values = []
    for knot in knots:
        near = [(value, weight * (1 - abs(size - knot) / _LAUNCHES_KNOT_STEP)) for size, value, weight in rows
                if abs(size - knot) < _LAUNCHES_KNOT_STEP]  # fmt: skip
        drawn = _DRAWN * sum(weight for *_, weight in rows) / len(rows)
        values.append((mean * drawn + sum(v * w for v, w in near)) / (drawn + sum(w for _, w in near)))
    return Curve(knots, tuple(values))


def _guess(models: dict[str, KindModel], part: Part) -> float:
    model = models.get(part.kind)
    return model.seconds(part) if model is not None else part.base + 2e-6


def _knots(values: Sequence[float], step: float) -> tuple[float, ...]:
    """Evenly spaced over the values, and none where nothing was measured near it."""
    low, high = floor(min(values) / step), ceil(max(values) / step)
    filled = {floor(value / step) for value in values} | {ceil(value / step) for value in values}
    return tuple(place * step for place in range(low, high + 1) if place in filled) or (low * step,)


class _Columns:
    """Places of a kind's unknowns in the system of equations."""

    def __init__(self, rows: Sequence[tuple[Part, float, float]]) -> None:
        self.curves: dict[str, tuple[int, tuple[float, ...]]] = {}
        self.tags: dict[str, int] = {}
        self.count = 0
        self._add(SIZE, [max(size_of(part), _SMALLEST_SIZE) for part, _, _ in rows])
        for name in sorted({name for part, _, _ in rows for name, _ in part.features}):
            values = [value for part, _, _ in rows for key, value in part.features if key == name]
            if max(values) - min(values) > 0.5:
                self._add(name, values)
        uses: dict[str, int] = {}
        for part, _, _ in rows:
            for tag in part.tags:
                uses[tag] = uses.get(tag, 0) + 1
        for tag in sorted(tag for tag, used in uses.items() if used < len(rows)):
            self.tags[tag] = self.count
            self.count += 1

    def _add(self, name: str, values: Sequence[float]) -> None:
        knots = _knots(values, _KNOT_STEP.get(name, _DEFAULT_KNOT_STEP))
        self.curves[name] = (self.count, knots)
        self.count += len(knots)

    def of(self, part: Part) -> list[tuple[int, float]]:
        entries = self._hat(SIZE, max(size_of(part), _SMALLEST_SIZE))
        for name, value in part.features:
            if name in self.curves:
                entries += self._hat(name, value)
        entries += [(self.tags[tag], 1.0) for tag in part.tags if tag in self.tags]
        return entries

    def _hat(self, name: str, x: float) -> list[tuple[int, float]]:
        first, knots = self.curves[name]
        if x <= knots[0]:
            return [(first, 1.0)]
        if x >= knots[-1]:
            return [(first + len(knots) - 1, 1.0)]
        place = next(place for place in range(1, len(knots)) if x <= knots[place])
        share = (x - knots[place - 1]) / (knots[place] - knots[place - 1])
        return [(first + place - 1, 1 - share), (first + place, share)]


def _fit_kind(rows: Sequence[tuple[Part, float, float]]) -> KindModel:
    columns = _Columns(rows)
    entries = [columns.of(part) for part, _, _ in rows]
    wanted = [log2(seconds / 1e-6) - max(size_of(part), _SMALLEST_SIZE) for part, seconds, _ in rows]
    mean_weight = sum(weight for _, _, weight in rows) / len(rows)
    weights = [weight / mean_weight for _, _, weight in rows]
    robust = [1.0] * len(rows)
    solution = [0.0] * columns.count
    for _ in range(_ROBUST_ROUNDS):
        solution = _solve(columns, entries, wanted, [w * r for w, r in zip(weights, robust, strict=True)])
        misses = [
            abs(target - sum(solution[c] * v for c, v in row)) for row, target in zip(entries, wanted, strict=True)
        ]
        robust = [_ROBUST_SCALE / max(miss, _ROBUST_SCALE) for miss in misses]
    misses.sort()
    curves = {
        name: Curve(knots, tuple(solution[first : first + len(knots)]))
        for name, (first, knots) in columns.curves.items()
    }
    return KindModel(
        size=curves.pop(SIZE),
        features=curves,
        tags={tag: solution[column] for tag, column in columns.tags.items()},
        spread=misses[len(misses) // 2],
    )


def _solve(
    columns: _Columns, entries: Sequence[list[tuple[int, float]]], wanted: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """Normal equations with the penalties, solved by elimination."""
    count = columns.count
    matrix = [[0.0] * count for _ in range(count)]
    right = [0.0] * count
    for row, target, weight in zip(entries, wanted, weights, strict=True):
        for column, value in row:
            right[column] += weight * value * target
            line = matrix[column]
            for other, factor in row:
                line[other] += weight * value * factor
    for name, (first, knots) in columns.curves.items():
        for place in range(len(knots)):
            matrix[first + place][first + place] += 1e-6 if name == SIZE else _FEATURE_RIDGE
        for place in range(1, len(knots) - 1):
            _penalise(matrix, [(first + place - 1, 1.0), (first + place, -2.0), (first + place + 1, 1.0)], _SMOOTHNESS)
        if name == SIZE and len(knots) == 2:
            _penalise(matrix, [(first, 1.0), (first + 1, -1.0)], 0.01)
    for column in columns.tags.values():
        matrix[column][column] += _TAG_RIDGE
    return _eliminate(matrix, right)


def _penalise(matrix: list[list[float]], row: list[tuple[int, float]], weight: float) -> None:
    for column, value in row:
        for other, factor in row:
            matrix[column][other] += weight * value * factor


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Cholesky would do as well; the system is symmetric and positive."""
    count = len(right)
    for pivot in range(count):
        scale = matrix[pivot][pivot]
        if scale < 1e-12:
            continue
        row = matrix[pivot]
        for below in range(pivot + 1, count):
            factor = matrix[below][pivot] / scale
            if factor:
                line = matrix[below]
                for column in range(pivot, count):
                    line[column] -= factor * row[column]
                right[below] -= factor * right[pivot]
    solution = [0.0] * count
    for pivot in range(count - 1, -1, -1):
        if matrix[pivot][pivot] < 1e-12:
            continue
        rest = sum(matrix[pivot][column] * solution[column] for column in range(pivot + 1, count))
        solution[pivot] = (right[pivot] - rest) / matrix[pivot][pivot]
    return solution
