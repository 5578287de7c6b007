"""Errors of predictions, and the few figures that sum them up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


def relative_error(predicted: float, measured: float) -> float:
    """Signed; +0.01 is one percent too high."""
    return (predicted - measured) / measured


@dataclass(frozen=True)
class ErrorSummary:
    """Summary of absolute relative errors."""

    count: int
    median: float
    p95: float
    largest: float


def summarize(errors: Iterable[float]) -> ErrorSummary:
    ordered = sorted(abs(error) for error in errors)
    if not ordered:
        return ErrorSummary(0, math.nan, math.nan, math.nan)
    nearest_rank = max(0, math.ceil(0.95 * len(ordered)) - 1)
    return ErrorSummary(len(ordered), statistics.median(ordered), ordered[nearest_rank], ordered[-1])


def percent(value: float) -> str:
    """Two digits below one percent, where they still tell something."""
    if math.isnan(value):
        return "–"
    shown = f"{100 * value:.2f}" if abs(value) < 0.01 else f"{100 * value:.1f}"
    return f"{shown} %"


def signed_percent(value: float) -> str:
    return ("+" if value > 0 else "−" if value < 0 else "") + percent(abs(value))


def summary_cells(summary: ErrorSummary) -> list[str]:
    """Count, median, 95th percentile, largest."""
    return [str(summary.count), percent(summary.median), percent(summary.p95), percent(summary.largest)]
