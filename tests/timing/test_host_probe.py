"""How fast a host is: single calls, and what it does undisturbed."""

from __future__ import annotations

import os
from math import log
from typing import Any

import pytest

from vramcast.measure import host_speed
from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.host import host_of, packaged_calls, packaged_host, undisturbed_host


def _calibration(host: dict[str, float]) -> Calibration:
    return Calibration(gpu="h200", source="", date="", environment={}, kinds={}, host=host)


def test_the_host_of_a_calibration_is_as_much_slower_as_its_calls() -> None:
    calls = packaged_calls()
    assert host_of(_calibration(calls)).factor == pytest.approx(undisturbed_host().factor)
    there = {"view": 2 * calls["view"], "module": 8 * calls["module"], "no such": 1.0}
    assert host_of(_calibration(there)).factor == pytest.approx(4.0)
    assert host_of(None) == host_of(_calibration({})) == packaged_host()
    assert packaged_host().factor > undisturbed_host().factor == 1.0, "others take their part"


def test_every_kind_of_single_call_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import vramcast
    from vramcast.measure.calibration import host

    monkeypatch.setattr(host, "_REPEATS", 1)
    with vramcast.virtual_gpu("h200"):
        every = host.host_costs()
    assert set(every) == set(packaged_calls()) and all(seconds > 0 for seconds in every.values())


def _watched(*steps: tuple[float, float, float, float]) -> dict[str, Any]:
    """(forward, backward, what Python's loop took, what autograd's took) of each step."""
    return {
        "loop_seconds": 1.0,
        "steps": [
            {
                "device_seconds": forward + backward,
                "phase_seconds": {"forward": forward, "backward": backward},
                "loops": [python, autograd, python, autograd],
            }
            for forward, backward, python, autograd in steps
        ],
    }


def test_a_phase_is_traced_back_to_its_own_threads_loop() -> None:
    seconds, phases = host_speed.undisturbed(
        _watched((2.0, 3.0, 1.0, 1.5), (2.4, 2.0, 1.2, 1.0), (3.0, 2.6, 1.5, 1.3), (2.6, 2.4, 1.3, 1.2))
    )
    assert phases == pytest.approx({"forward": 2.0, "backward": 2.0})
    assert 3.6 < seconds < 4.4


def test_a_step_that_does_not_feel_its_host_is_the_mean_of_what_was_measured() -> None:
    steady = _watched((2.0, 2.0, 1.0, 1.0), (2.0, 2.0, 1.6, 1.6))
    assert host_speed.undisturbed(steady)[0] == pytest.approx(4.0)
    faster_when_slow = _watched((2.0, 2.0, 1.0, 1.0), (1.0, 1.0, 1.6, 1.6))
    assert log(host_speed.undisturbed(faster_when_slow)[0]) == pytest.approx((log(4.0) + log(2.0)) / 2)
    always_the_same = _watched((2.0, 2.0, 1.3, 1.3), (2.0, 2.0, 1.3, 1.3))
    assert host_speed.undisturbed(always_the_same)[0] == pytest.approx(4.0)


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
    assert len(host_speed.watched_steps(lambda: step(next(uneven)))["steps"]) == 24
    assert alike["loop_seconds"] <= min(min(one["loops"]) for one in alike["steps"])
