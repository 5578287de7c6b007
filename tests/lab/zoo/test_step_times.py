"""Steps of public scripts that were timed on a quiet GPU, beside what was predicted for them."""

from __future__ import annotations

import statistics

from lab.zoo import step_times
from lab.zoo.records import PREDICTED, Records


def test_step_times_are_as_close_as_they_were() -> None:
    timed = Records(step_times.TIMED).by_script
    errors = [abs(error) for error in step_times.errors(timed, Records(PREDICTED).by_script).values()]
    assert len(errors) >= 93
    assert statistics.median(errors) < 0.085
    assert sum(error <= step_times.NEAR for error in errors) / len(errors) > 0.89


def test_a_loader_is_no_part_of_a_step() -> None:
    block = {"seconds": 0.05, "loops": [1.0, 1.0], "loader_seconds": 0.06}
    record = {
        "blocks": [block] * 3, "steps_in_block": 2, "loader_seconds_per_step": 0.03, "profile": None, "gpu": "a card",
        "torch": "2.11.0", "python": "3.12.3",
    }  # fmt: skip
    assert round(step_times.summary(record, fastest=1.0)["step_seconds"], 6) == 0.02
