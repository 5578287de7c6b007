"""How far predicted times of steps are off: beside the recorded ones, and the order of variants."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lab import DATA
from lab.comparing.times import (
    PHASES,
    RECORDS,
    MeasuredTimes,
    TimeFigures,
    combined,
    draw_of,
    held_out,
    measured_times,
    op_records,
)

LEAST_PHASE = 0.02
"""A phase that is a smaller part of its step than this is not judged."""
LEAST_DIFFERENCE = 0.05
AT_HOST_SPEED = "at the host's measured speed"
_SAME_MODEL = ("name", "kind", "layers", "width", "heads", "channels", "gated", "dims", "rank")


@dataclass(frozen=True)
class TimeComparison:
    """A measured step beside its prediction."""

    measured: MeasuredTimes
    predicted: TimeFigures

    @property
    def error(self) -> float:
        return self.predicted.seconds / self.measured.seconds - 1

    @property
    def specification_error(self) -> float:
        return self.predicted.specification_seconds / self.measured.seconds - 1

    @property
    def at_host_speed(self) -> TimeComparison | None:
        """Steps during which the host's speed was watched, beside the prediction for that speed."""
        watched = self.measured.watched
        predicted = None if watched is None else self.predicted.at_host(watched.factor)
        if watched is None or predicted is None:
            return None
        return TimeComparison(replace(self.measured, seconds=watched.seconds, phases=watched.phases), predicted)

    @property
    def reserved_error(self) -> float:
        """Error of the reserved peak of the same run."""
        return self.predicted.reserved_bytes / self.measured.reserved_bytes - 1

    def phase_error(self, phase: str) -> float | None:
        measured = self.measured.phases.get(phase, 0.0)
        if measured < LEAST_PHASE * self.measured.seconds:
            return None
        return self.predicted.phases.get(phase, 0.0) / measured - 1

    @property
    def draw(self) -> int:
        return draw_of(self.measured.name)

    @property
    def fitted(self) -> bool:
        """The times of kernels are fitted to its recorded ops, or those of the host to its watched steps."""
        return self.measured.name in _fitted()

    @property
    def model(self) -> tuple[Any, ...]:
        args = self.measured.args
        return self.measured.factory, *(str(args.get(name)) for name in _SAME_MODEL)


@cache
def _fitted() -> frozenset[str]:
    watched = (name for name, runs in measured_times().items() if any(run.watched for run in runs))
    names = {*(record["name"] for record in op_records()), *watched}
    return frozenset(name for name in names if not held_out(name))


@dataclass(frozen=True)
class Pairs:
    """Pairs of runs of one model whose measured times differ."""

    right: int
    total: int
    wrong: tuple[tuple[str, str], ...]

    @property
    def share(self) -> float:
        return self.right / self.total if self.total else 1.0


@cache
def predicted_before() -> dict[str, TimeFigures]:
    """What was predicted of workloads before they were measured, as it was committed then."""
    figures_by_name = {}
    for path in sorted(DATA.glob("predictions-*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            figures = json.loads(text)
            name = figures.pop("name")
            if "error" not in figures:
                figures_by_name[name] = TimeFigures.from_json(figures)
    return figures_by_name


def is_variant(comparison: TimeComparison) -> bool:
    """One of the runs that differ from another in a setting or two (what-if.yaml)."""
    return "what-if" in comparison.measured.tags


@cache
def _timed() -> dict[str, MeasuredTimes]:
    """Without runs that were made later to see what was missed: most of those were chosen for their misses."""
    return {name: combined(runs) for name, runs in measured_times((RECORDS / "times",)).items()}


def blind(comparisons: Iterable[TimeComparison]) -> list[TimeComparison]:
    """Workloads that were predicted before they were measured, with what was predicted then."""
    before, timed = predicted_before(), _timed()
    names = [comparison.measured.name for comparison in comparisons]
    return [TimeComparison(timed[name], before[name]) for name in names if name in before and name in timed]


def newest_blind(comparisons: Iterable[TimeComparison]) -> list[TimeComparison]:
    """The last draw of them: what the present code, or nearly, gave."""
    measured_later = blind(comparisons)
    newest = max((comparison.draw for comparison in measured_later), default=0)
    return [comparison for comparison in measured_later if newest and comparison.draw == newest]


def order_of_pairs(comparisons: Iterable[TimeComparison]) -> Pairs:
    """Runs of the same model whose measured times differ by more than 5 %: is the slower one predicted slower?"""
    by_model: dict[tuple[Any, ...], list[TimeComparison]] = {}
    for comparison in comparisons:
        by_model.setdefault(comparison.model, []).append(comparison)
    right, wrong = 0, []
    for group in by_model.values():
        for i, first in enumerate(group):
            for second in group[i + 1 :]:
                a, b = first.measured.seconds, second.measured.seconds
                if abs(a - b) <= LEAST_DIFFERENCE * min(a, b):
                    continue
                if (a < b) == (first.predicted.seconds < second.predicted.seconds):
                    right += 1
                else:
                    wrong.append((first.measured.name, second.measured.name))
    return Pairs(right, right + len(wrong), tuple(wrong))


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(comparisons: list[TimeComparison]) -> list[tuple[str, int, float, float, float]]:
    """(what, how many, median error, nine of ten, within 20 %)."""
    rows = []
    columns = _errors(comparisons)
    columns.append(("step, specification only", [c.specification_error for c in comparisons]))
    watched = [there for c in comparisons if (there := c.at_host_speed) is not None]
    if watched:
        columns += [(f"{name}, {AT_HOST_SPEED}", errors) for name, errors in _errors(watched)]
    for name, errors in columns:
        sizes = [abs(error) for error in errors]
        within = sum(size <= 0.2 for size in sizes) / len(sizes) if sizes else 0.0
        rows.append((name, len(sizes), quantile(sizes, 0.5), quantile(sizes, 0.9), within))
    return rows


def _errors(comparisons: list[TimeComparison]) -> list[tuple[str, list[float]]]:
    """Errors of the step and of each phase."""
    columns = [("step", [c.error for c in comparisons])]
    for phase in PHASES:
        errors = [c.phase_error(phase) for c in comparisons]
        columns.append((phase, [e for e in errors if e is not None]))
    return columns


def spread(comparisons: list[TimeComparison]) -> dict[str, tuple[float, float]]:
    """Measured over predicted, between the 5th and the 95th of a hundred: what an interval is made of. With a
    calibration, of workloads that it was not fitted to, as they were predicted before they were measured; at the
    host's speed where it is known."""
    newest = newest_blind(comparisons)
    names = {c.measured.name for c in newest}
    unseen = [*newest, *(c for c in comparisons if not c.fitted and c.measured.name not in names)] or comparisons
    ranges = {}
    for name, errors in (
        ("calibrated", [(c.at_host_speed or c).error for c in unseen]),
        ("specification", [c.specification_error for c in comparisons]),
    ):
        ratios = [1 / (1 + error) for error in errors]
        low, high = min(1.0, quantile(ratios, 0.05)), max(1.0, quantile(ratios, 0.95))
        ranges[name] = (round(low, 2), round(high, 2))
    # A time on a card that was never measured is no more certain than one on a card that was.
    lows, highs = zip(*ranges.values(), strict=True)
    return ranges | {"specification": (min(lows), max(highs))}


def groups(comparisons: list[TimeComparison]) -> list[tuple[str, list[TimeComparison]]]:
    """What is told apart: what was predicted before there was a measurement, and what the fit has seen or not."""
    before = blind(comparisons)
    now = [comparison for comparison in comparisons if comparison.measured.name in predicted_before()]
    draws = sorted({comparison.draw for comparison in before} - {0}, reverse=True)
    titled = [
        (f"drawn-{draw}, predicted before they were measured", [c for c in before if c.draw == draw]) for draw in draws
    ]
    titled.append(("variants of five models, predicted before they were measured", [*filter(is_variant, before)]))
    titled += [(f"drawn-{draw}, now", [c for c in now if c.draw == draw]) for draw in draws]
    return [
        *titled,
        ("the same variants, now", [*filter(is_variant, now)]),
        ("those that the fit has seen, now", [c for c in comparisons if c.fitted]),
        ("all that it has not seen, now", [c for c in comparisons if not c.fitted]),
        ("all, now", comparisons),
    ]


def pairs_of_variants(comparisons: list[TimeComparison]) -> list[tuple[str, Pairs]]:
    return [
        ("variants, predicted before they were measured", order_of_pairs(filter(is_variant, blind(comparisons)))),
        ("variants, now", order_of_pairs(filter(is_variant, comparisons))),
        ("all, now", order_of_pairs(comparisons)),
    ]
