"""Errors of the recorded predictions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from lab.published.predict import read

GIB = 2**30
DIFFERENT = 1.10
"""Two layouts are told apart where one is this many times as fast as the other."""


@dataclass(frozen=True)
class Scored:
    """A drawn row beside its prediction; `error` is None where there is none."""

    row: dict[str, str]
    result: dict[str, str]
    published: float
    predicted: float | None

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else self.predicted / self.published - 1

    @property
    def by(self) -> str:
        return self.row["by"]


def memory() -> list[Scored]:
    """Published and predicted GiB, of the kind the source names."""
    results = {entry["row"]: entry for entry in read("results_memory.csv")}
    found = []
    for row in read("drawn_memory.csv"):
        result = results.get(row["row"], {})
        kind = "reserved" if "reserved" in row["memory_kind"] else "allocated"
        text = result.get(kind, "")
        found.append(Scored(row, result, _published_gib(row), int(text) / GIB if text else None))
    return found


def _published_gib(row: dict[str, str]) -> float:
    """torchao's benchmark of optimizers divides bytes by 1e9 and prints GB; what others call GB is GiB."""
    figure = float(row["peak_memory_gib"])
    return figure * 1e9 / GIB if row["memory_kind"] == "max_allocated, printed GB" else figure


def speed() -> list[Scored]:
    """Published and predicted seconds of a step."""
    results = {entry["row"]: entry for entry in read("results_speed.csv")}
    found = []
    for row in read("drawn_speed.csv"):
        result = results.get(row["row"], {})
        text = result.get("step_seconds", "")
        found.append(Scored(row, result, step_seconds(row), float(text) if text else None))
    return found


def step_seconds(row: dict[str, str]) -> float:
    """Of a rank's batch: torchtitan prints tokens of a card, and a batch is shared by the cards of tensor, pipeline and
    context parallelism."""
    if row["step_s"]:
        return float(row["step_s"])
    shared = int(row["tp"] or 1) * int(row["pp"] or 1) * int(row["cp"] or 1)
    tokens = int(row["micro_batch"]) * int(row["seq"] or 8192) / shared
    return tokens / float(row["tokens_per_s_per_gpu"])


@dataclass(frozen=True)
class Summary:
    rows: int
    answered: int
    median: float
    """Of the absolute errors of answered rows."""
    within: float
    """Share of all rows, answered or not, within the bound."""


def summary(rows: Iterable[Scored], bound: float) -> Summary:
    rows = list(rows)
    errors = [abs(row.error) for row in rows if row.error is not None]
    within = sum(error <= bound for error in errors)
    return Summary(
        len(rows),
        len(errors),
        statistics.median(errors) if errors else float("nan"),
        within / len(rows) if rows else 0.0,
    )


def pairs_in_order(rows: list[Scored]) -> tuple[int, int]:
    """(right, all) pairs of layouts of one model on one card that differ by more than a tenth in tokens a second."""
    right = total = 0
    groups: dict[tuple[str, str], list[Scored]] = {}
    for row in rows:
        if row.predicted is not None:
            groups.setdefault((row.row["model"], row.row["gpu"]), []).append(row)
    for group in groups.values():
        for one, other in combinations(group, 2):
            ratio = rate(one, one.published) / rate(other, other.published)
            if max(ratio, 1 / ratio) <= DIFFERENT:
                continue
            total += 1
            predicted = rate(one, one.predicted or 0.0) / rate(other, other.predicted or 0.0)
            right += (ratio > 1) == (predicted > 1)
    return right, total


def rate(scored: Scored, seconds: float) -> float:
    """Tokens a second of a card."""
    row = scored.row
    if row["step_s"]:
        return int(row["global_batch"]) * int(row["seq"]) / int(row["n_gpus"]) / seconds
    return step_seconds(row) * float(row["tokens_per_s_per_gpu"]) / seconds
