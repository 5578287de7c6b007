"""How fast a host is: single calls, and what it does undisturbed."""

from __future__ import annotations

import os
from typing import Any

import pytest

from vramcast.errors import UsageError
from vramcast.features.measure import host_speed
from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.host import (
    host_of,
    packaged_calls,
    parse_host,
    reference_dispatch,
    undisturbed_host,
)
from vramcast.timing.settings import HOST_VARIABLE


def _calibration(host: dict[str, float]) -> Calibration:
    return Calibration(gpu="h200", source="", date="", environment={}, kinds={}, host=host)


def test_the_host_of_a_calibration_is_as_much_slower_as_its_calls() -> None:
    calls = packaged_calls()
    assert host_of(_calibration(calls)).factor == pytest.approx(undisturbed_host().factor)
    there = {"view": 2 * calls["view"], "module": 8 * calls["module"], "no such": 1.0}
    assert host_of(_calibration(there)).factor == pytest.approx(4.0)
    assert host_of(None) == host_of(_calibration({})) == undisturbed_host()
    assert undisturbed_host().factor == 1.0 and undisturbed_host().label == "undisturbed"


def test_the_host_that_was_chosen_comes_before_that_of_a_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _calibration({name: 3 * seconds for name, seconds in packaged_calls().items()})
    assert host_of(slow).label == "the one of the calibration, which takes 3.00 times as long as an undisturbed one"
    monkeypatch.setenv(HOST_VARIABLE, "1.3")
    assert host_of(slow).factor == host_of(None).factor == 1.3
    assert host_of(None).label == "one that takes 1.30 times as long as an undisturbed one"
    monkeypatch.setenv(HOST_VARIABLE, "0.8:here")
    assert host_of(None).label == "this computer, which takes 0.80 times as long as an undisturbed one"
    monkeypatch.setenv(HOST_VARIABLE, "undisturbed")
    assert host_of(slow) == undisturbed_host()


@pytest.mark.parametrize("text", ["fast", "0", "-1", "nan", "1e9", "1.3:there", ""])
def test_a_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="how many times as long"):
        parse_host(text)


def test_the_benchmark_times_the_kinds_that_the_reference_has() -> None:
    pytest.importorskip("torch")
    from vramcast.features.measure.host_benchmark import dispatch_seconds

    found = dispatch_seconds(rounds=1)
    assert set(found) == set(reference_dispatch()) and all(seconds > 0 for seconds in found.values())


def test_every_kind_of_single_call_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import vramcast
    from vramcast.features.measure.calibration import host

    monkeypatch.setattr(host, "_REPEATS", 1)
    with vramcast.virtual_gpu("h200"):
        every = host.host_costs()
    assert set(every) == set(packaged_calls()) and all(seconds > 0 for seconds in every.values())


def test_a_slowdown_is_the_mean_of_the_loops_over_the_fastest() -> None:
    steps = [{"loops": [2.0, 8.0, 4.0, 4.0]}, {"loops": [1.0, 1.0, 1.0, 1.0]}]
    assert host_speed.slowdown({"loop_seconds": 1.0, "steps": steps}) == pytest.approx(2.0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="places threads as Linux does")
def test_steps_that_are_alike_end_the_watch_and_threads_go_back() -> None:
    allowed = os.sched_getaffinity(0)
    inside = []

    def step(seconds: float) -> dict[str, Any]:
        inside.append(os.sched_getaffinity(0))
        return {"device_seconds": seconds, "phase_seconds": {"forward": seconds}}

    alike = host_speed.watched_steps(lambda: step(0.1))
    assert len(alike["steps"]) == 8 and all(len(processors) == 1 for processors in inside)
    assert os.sched_getaffinity(0) == allowed
    uneven = iter([0.1, 0.2] * 12)
    assert len(host_speed.watched_steps(lambda: step(next(uneven)), seconds=600)["steps"]) == 24
    assert alike["loop_seconds"] <= min(min(one["loops"]) for one in alike["steps"])
