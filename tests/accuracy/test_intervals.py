"""Intervals of memory figures beside recorded runs: 95 of 100 lie inside, and the intervals are narrow."""

from __future__ import annotations

import json

import pytest

from lab.comparing.memory_errors import ERRORS, blind_errors, group, recorded_errors, script_errors
from lab.comparing.predictions import Comparison, Measured
from lab.comparing.time_errors import quantile
from tests.accuracy.conftest import reason_to_skip, recorded
from vramcast.memory.margin import ASSUMED, RECORDED, margin_of

INSIDE, GIVE_OR_TAKE = 0.95, 0.02
MEDIAN_WIDTH = 0.01


def _inside(errors: list[float], name: str) -> int:
    return sum(abs(error) <= margin_of(name).error for error in errors)


def test_the_kept_errors_of_scripts_are_those_of_their_records() -> None:
    kept = json.loads(ERRORS.read_text(encoding="utf-8"))["groups"][ASSUMED]
    assert kept == group(script_errors(), kept["of"]), "lab/ has other records: run `make accuracy`"


def test_95_of_100_written_down_predictions_lie_in_their_interval() -> None:
    """Of scripts, and of runs that were predicted before they were measured: needs no prediction here."""
    groups = [(RECORDED, blind_errors()), (ASSUMED, script_errors())]
    for name, errors in groups:
        assert len(errors) > 100
        assert _inside(errors, name) / len(errors) == pytest.approx(INSIDE, abs=GIVE_OR_TAKE), name
    widths = [2 * margin_of(name).error for name, _ in groups for _ in range(margin_of(name).runs)]
    assert quantile(widths, 0.5) <= MEDIAN_WIDTH


def test_the_interval_also_holds_for_runs_that_did_not_set_it() -> None:
    """Every tenth run is put aside, the interval is worked out from the others, and so on ten times."""
    inside = total = 0
    for errors in (blind_errors(), script_errors()):
        for fold in range(10):
            limit = group([error for i, error in enumerate(errors) if i % 10 != fold], "")["within"][str(INSIDE)]
            put_aside = errors[fold::10]
            inside += sum(abs(error) <= limit for error in put_aside)
            total += len(put_aside)
    assert inside / total == pytest.approx(INSIDE, abs=GIVE_OR_TAKE)


@pytest.mark.accuracy
@pytest.mark.parametrize("workload", recorded(), ids=lambda w: w.name)
def test_the_device_bytes_are_predicted(workload: Measured, comparisons: dict[str, Comparison]) -> None:
    """Asks for the predictions that the next test counts."""
    if reason := reason_to_skip(workload.name):
        pytest.skip(reason)
    assert comparisons[workload.name].device_bytes > comparisons[workload.name].reserved_bytes


@pytest.mark.accuracy
def test_95_of_100_recorded_runs_lie_in_their_interval(comparisons: dict[str, Comparison]) -> None:
    predicted = recorded_errors(c for c in comparisons.values() if not c.error)
    if len(predicted) < 60:
        pytest.skip(f"only {len(predicted)} workloads were predicted here")
    groups = [(RECORDED, [*predicted, *blind_errors()]), (ASSUMED, script_errors())]
    for name, errors in groups:
        assert _inside(errors, name) / len(errors) == pytest.approx(INSIDE, abs=GIVE_OR_TAKE), name
    every = sum(len(errors) for _, errors in groups)
    assert sum(_inside(errors, name) for name, errors in groups) / every == pytest.approx(INSIDE, abs=GIVE_OR_TAKE)
    widths = [2 * margin_of(name).error for name, errors in groups for _ in errors]
    assert quantile(widths, 0.5) <= MEDIAN_WIDTH


@pytest.mark.accuracy
def test_what_was_reserved_lies_in_the_interval_too(comparisons: dict[str, Comparison]) -> None:
    errors = [c.reserved_error for c in comparisons.values() if not c.error]
    if len(errors) < 60:
        pytest.skip(f"only {len(errors)} workloads were predicted here")
    assert _inside(errors, RECORDED) / len(errors) >= INSIDE - GIVE_OR_TAKE
