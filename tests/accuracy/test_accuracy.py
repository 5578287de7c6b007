"""Predictions beside the measurements kept in corpus/measurements. The tolerances are the project's bars."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from corpus.errors import percent, signed_percent, summarize
from corpus.predictions import Comparison, Measured

from tests.accuracy.conftest import reason_to_skip, recorded

pytestmark = pytest.mark.accuracy

# For each workload.
RESERVED_TOLERANCE = 0.05
ALLOCATED_TOLERANCE = 0.02
# Over all of them.
RESERVED_MEDIAN, RESERVED_P95 = 0.01, 0.03
ALLOCATED_MEDIAN = 0.005
DEVICE_MEDIAN = 0.02

WORKLOADS = recorded()


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_prediction_is_within_tolerance(workload: Measured, comparisons: dict[str, Comparison]) -> None:
    if reason := reason_to_skip(workload.name):
        pytest.skip(reason)
    comparison = comparisons[workload.name]
    assert not comparison.error, comparison.error
    reserved, allocated = comparison.reserved_error, comparison.allocated_error
    assert abs(reserved) <= RESERVED_TOLERANCE, f"reserved is off by {signed_percent(reserved)}"
    assert abs(allocated) <= ALLOCATED_TOLERANCE, f"allocated is off by {signed_percent(allocated)}"


@pytest.mark.parametrize(
    ("measure", "error", "median", "p95"),
    [
        ("reserved", lambda c: c.reserved_error, RESERVED_MEDIAN, RESERVED_P95),
        ("allocated", lambda c: c.allocated_error, ALLOCATED_MEDIAN, None),
        ("device bytes", lambda c: c.device_error, DEVICE_MEDIAN, None),
    ],
    ids=["reserved", "allocated", "device"],
)
def test_errors_over_all_workloads(
    measure: str,
    error: Callable[[Comparison], float | None],
    median: float,
    p95: float | None,
    comparisons: dict[str, Comparison],
) -> None:
    errors = [e for c in comparisons.values() if not c.error and (e := error(c)) is not None]
    if len(errors) < 20:
        pytest.skip(f"only {len(errors)} workloads were predicted here")
    summary = summarize(errors)
    assert summary.median <= median, f"{measure}: median {percent(summary.median)}"
    if p95 is not None:
        assert summary.p95 <= p95, f"{measure}: 95th percentile {percent(summary.p95)}"


def test_measurements_are_of_workloads_that_exist() -> None:
    from corpus.measure_corpus import load_everything

    defined = {workload.name for workload in load_everything()}
    assert {workload.name for workload in WORKLOADS} <= defined
