"""Which of two ways that are equally good comes first."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from tests.jobs.tiny import JOB as TINY
from vramcast.cli.commands import advise, whatif
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.first_changes import _place
from vramcast.features.advise.knob_names import KNOBS, SPEED
from vramcast.features.advise.knobs import options_for
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.features.advise.search import Search
from vramcast.gpus import find_gpu
from vramcast.jobs.validation import make_job

CARD = find_gpu("rtx-4090")


def test_of_two_batches_that_are_as_fast_the_larger_one_comes_first() -> None:
    job = make_job({**TINY, "sizes": {"batch": 1000}}, "job")
    options = options_for(job, CARD, ["offload"])
    few, many = (
        Combination(tuple(one for one in options["batch"] if one.text.startswith(f"batch {size},")))
        for size in (500, 125)
    )
    with Runs(CARD, steps=3, workers=1, progress=lambda text: None) as runs:
        (asked,) = runs.trace([Wish(job, "")])
        assert isinstance(asked, Traced) and asked.time is not None
        search = Search(job, runs, options, "throughput", asked)
        search.keep(few, asked)
        search.keep(
            many, dataclasses.replace(asked, time=dataclasses.replace(asked.time, seconds=0.999 * asked.time.seconds))
        )
    assert search.time(many) < search.time(few)
    assert search.fitting().index(few) < search.fitting().index(many)
    assert _place(few, search.time(few), job) < _place(many, search.time(many), job)


@pytest.mark.parametrize(("verb", "names"), [(advise, KNOBS), (whatif, SPEED)])
def test_the_help_of_keep_names_every_knob(verb: object, names: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)  # type: ignore[attr-defined]
    (keep,) = [action for action in parser._actions if "--keep" in action.option_strings]
    assert keep.help is not None and keep.help.endswith(f": {', '.join(names)}")


def test_what_needs_fewer_changes_is_traced_although_something_like_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.features.advise.search._MANY_EVENTS", 0)  # each trace is thought to take long
    job = make_job({**TINY, "sizes": {"batch": 1000}}, "job")
    options = options_for(job, CARD, ["offload"])
    half = next(one for one in options["batch"] if one.text.startswith("batch 500,"))
    eight_bits = next(one for one in options["optimizer"] if one.text == "8-bit Adam")
    plain, more = Combination((half,)), Combination((half, eight_bits))
    with Runs(CARD, steps=3, workers=1, progress=lambda text: None) as runs:
        (asked,) = runs.trace([Wish(job, "")])
        assert isinstance(asked, Traced)
        search = Search(job, runs, options, "throughput", asked)
        del search.traced[Combination(())]
        search.keep(more, asked)
    assert not search._has_equal(plain)
    assert list(search._simpler([more, plain], more, search._rank(more))) == [1], "it is asked before more is shown"
    search.keep(plain, asked)
    assert search._has_equal(more)
    assert not list(search._simpler([more, plain], more, search._rank(more)))
