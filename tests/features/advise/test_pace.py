"""The time of combinations: predicted of those that were traced, of the others from a relative."""

from __future__ import annotations

import dataclasses

import pytest

import vramcast
from tests.jobs.tiny import JOB as TINY
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.knobs import options_for
from vramcast.features.advise.option import Option
from vramcast.features.advise.pace import Pace
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.gpus import find_gpu
from vramcast.jobs.load import with_overrides
from vramcast.jobs.validation import make_job
from vramcast.prediction.step_time import job_step_time

CARD = find_gpu("rtx-4090")
JOB = make_job({**TINY, "sizes": {"batch": 100_000}}, "job")
ASKED = Combination(())
OPTIONS = options_for(JOB, CARD, ["offload"])


def option(knob: str, start: str = "") -> Option:
    return next(one for one in OPTIONS[knob] if one.text.startswith(start))


@pytest.fixture(scope="module")
def found() -> dict[Combination, Traced]:
    ones = [ASKED, Combination((option("precision", "bf16"),))]
    with Runs(CARD, steps=3, workers=1, progress=lambda text: None) as runs:
        traced = runs.trace([Wish(with_overrides(JOB, one.changes), "") for one in ones])
    return {one: run for one, run in zip(ones, traced, strict=True) if isinstance(run, Traced)}


def test_what_was_traced_has_its_predicted_time(found: dict[Combination, Traced]) -> None:
    pace, half = Pace(JOB, found), list(found)[1]
    predicted = [vramcast.predict(with_overrides(JOB, one.changes), CARD) for one in found]
    assert pace.time(ASKED) == 1
    assert pace.time(half) == pytest.approx(predicted[1].step_seconds / predicted[0].step_seconds)
    assert pace.seconds_per_sample(half) == pytest.approx(predicted[1].step_seconds / 100_000)


def test_a_relative_corrects_the_rule_of_thumb(found: dict[Combination, Traced]) -> None:
    pace, half = Pace(JOB, found), list(found)[1]
    every = option("checkpointing")
    assert pace.time(Combination((every,))) == pytest.approx(every.time)
    assert pace.time(half.with_option(every)) == pytest.approx(pace.time(half) * every.time)
    setting = option("allocator")
    assert pace.time(half.with_option(setting)) == pace.time(half)


def test_tiny_batches_take_what_it_takes_to_issue_their_ops(found: dict[Combination, Traced]) -> None:
    pace = Pace(JOB, found)
    one, half = (pace.time(Combination((option("batch", f"batch {size}, acc"),))) for size in ("1", "50,000"))
    assert 0.9 < half < 1.2 and one > 100


def test_a_smaller_sample_counts_for_its_share(found: dict[Combination, Traced]) -> None:
    shorter = Option(knob="sequence", text="sequence 32", changes={}, cost="", sample_share=0.5)
    pace = Pace(JOB, {**found, Combination((shorter,)): found[ASKED]})
    assert pace.time(Combination((shorter,))) == 2
    assert pace.seconds_per_sample(Combination((shorter,))) == pace.seconds_per_sample(ASKED)


def test_what_a_trace_does_not_show_is_a_rule_of_thumb(found: dict[Combination, Traced]) -> None:
    paged = Combination((Option(knob="optimizer", text="paged", changes={}, cost="", time=1.1, by_rule=True),))
    pace = Pace(JOB, {**found, paged: found[ASKED]})
    assert pace.time(paged) == pytest.approx(1.1)


def test_without_a_time_all_is_a_rule_of_thumb(found: dict[Combination, Traced]) -> None:
    pace = Pace(JOB, {ASKED: dataclasses.replace(found[ASKED], time=None)})
    every = Combination((option("checkpointing"),))
    assert pace.time(every) == every.time and pace.seconds_per_sample(every) is None


def test_copies_to_the_computer_can_be_left_out() -> None:
    job = with_overrides(JOB, {"offload.activations": True, "offload.pinned": True})
    traced = vramcast.predict(job, CARD)
    plain = vramcast.predict(JOB, CARD).step_seconds
    without = job_step_time(job, traced.trace, CARD, time_copies=False)
    assert without is not None and traced.step_seconds > 1.5 * plain
    assert without.seconds < 1.5 * plain
