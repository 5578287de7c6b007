"""Predicted times beside recorded ones, for the workloads whose memory is predicted anyway."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.comparing.predictions import Comparison, Measured
from lab.comparing.time_accuracy import as_measured, compare, time_comparisons, trace_all
from lab.comparing.time_errors import order_of_pairs, quantile
from lab.comparing.times import PHASES, combined, draw_of, measured_times, robust_seconds
from tests.accuracy.conftest import EVERY_VARIABLE, reason_to_skip, recorded

pytestmark = pytest.mark.accuracy

# Over all of them; hosts differ by 10 to 20 % from run to run, so that one workload alone says little.
STEP_MEDIAN = 0.10
PHASE_MEDIAN = 0.15 if os.environ.get(EVERY_VARIABLE) else 0.20
"""Of every workload; some thirty of them, as are predicted here otherwise, scatter more."""
WITHIN_20_PERCENT = 0.85
FEWEST = 15
FEW = 6
LAST_DRAW_WORST = 0.35


@pytest.fixture(scope="module")
def times(comparisons: dict[str, Comparison]) -> list:  # type: ignore[type-arg]
    found = time_comparisons(comparisons.values())
    if len(found) < FEWEST:
        pytest.skip(f"only {len(found)} workloads with recorded times were predicted here")
    return found


@pytest.mark.parametrize("workload", recorded(), ids=lambda w: w.name)
def test_a_time_is_predicted(workload: Measured, comparisons: dict[str, Comparison]) -> None:
    if reason := reason_to_skip(workload.name):
        pytest.skip(reason)
    time = comparisons[workload.name].time
    assert time is not None
    assert time.device_seconds > 0 and time.host_seconds > 0
    assert time.seconds >= 0.99 * max(time.device_seconds, 0.0)
    assert sum(time.phases.values()) == pytest.approx(time.seconds)


def test_steps_and_phases_are_near_the_recorded_ones(times: list) -> None:  # type: ignore[type-arg]
    errors = [abs(one.error) for one in times]
    assert quantile(errors, 0.5) <= STEP_MEDIAN
    assert sum(error <= 0.2 for error in errors) >= WITHIN_20_PERCENT * len(errors)
    for phase in PHASES:
        found = [abs(error) for one in times if (error := one.phase_error(phase)) is not None]
        assert quantile(found, 0.5) <= PHASE_MEDIAN, phase


def test_variants_of_a_model_are_in_the_right_order(times: list) -> None:  # type: ignore[type-arg]
    pairs = order_of_pairs(times)
    assert pairs.right >= 0.8 * pairs.total, pairs.wrong


def test_the_last_draw_is_near_at_the_speed_that_its_host_had(tmp_path: Path) -> None:
    """Some of the runs that no fit has seen, predicted anew."""
    known = measured_times()
    last = max(draw_of(name) for name in known)
    names = [name for name in sorted(known) if draw_of(name) == last and not reason_to_skip(name)]
    drawn = [combined(known[name]) for name in (names if os.environ.get(EVERY_VARIABLE) else names[:FEW])]
    if not drawn:
        pytest.skip("what the last draw was measured with is not installed")
    assert trace_all([as_measured(one) for one in drawn], tmp_path, jobs=2) == {}
    watched = [there for one in compare(drawn, tmp_path) if (there := one.at_host_speed) is not None]
    assert len(watched) == len(drawn)
    errors = {one.measured.name: abs(one.error) for one in watched}
    assert quantile(errors.values(), 0.5) <= STEP_MEDIAN, errors
    assert max(errors.values()) <= LAST_DRAW_WORST, errors


def test_two_figures_that_are_far_apart_are_not_averaged() -> None:
    assert robust_seconds(2.0, None) == (2.0, False)
    assert robust_seconds(2.0, 2.2) == (2.1, False)
    assert robust_seconds(3.0, 2.0) == (2.0, True)
