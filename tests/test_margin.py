"""The margin of a prediction: of the groups of recorded runs that it belongs to, the widest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.samples import transformer
from vramcast.gpus import find_gpu
from vramcast.memory import margin as module
from vramcast.memory import predict
from vramcast.memory.cards import card_fits
from vramcast.memory.margin import (
    ASSUMED,
    OTHER_CARD,
    OTHER_CARD_CONVOLUTIONS,
    RECORDED,
    Margin,
    has_many_convolutions,
    margin_for,
    margin_of,
)
from vramcast.report.wording import interval
from vramcast.trace import Note


def _group(gpu: str, *topics: str, many_convolutions: bool = False) -> Margin:
    return margin_for(gpu, [Note(topic, "") for topic in topics], many_convolutions=many_convolutions)


def test_the_group_of_a_prediction() -> None:
    assert _group("h200") == _group("h200", many_convolutions=True) == margin_of(RECORDED)
    assert _group("h200", "files", "not run") == margin_of(RECORDED)
    assert _group("h200", "unknown value") == margin_of(ASSUMED)
    assert _group("rtx-4090") == margin_of(OTHER_CARD)
    assert _group("rtx-4090", many_convolutions=True) == margin_of(OTHER_CARD_CONVOLUTIONS)
    # Without cuDNN its choices are not known, on whichever card.
    assert _group("h200", "convolutions", many_convolutions=True) == margin_of(OTHER_CARD_CONVOLUTIONS)


def test_of_two_groups_the_wider_counts() -> None:
    errors = [margin_of(name).error for name in (ASSUMED, OTHER_CARD)]
    assert _group("rtx-4090", "unknown value").error == max(errors)


def test_the_groups_are_as_wide_as_what_is_not_known() -> None:
    recorded, assumed, convolutions = (margin_of(name) for name in (RECORDED, ASSUMED, OTHER_CARD_CONVOLUTIONS))
    assert 0 < recorded.error <= 0.005, "half of the width that a recorded run may have"
    assert recorded.error < assumed.error < convolutions.error
    assert recorded.runs > 400 and assumed.runs > 150 and convolutions.runs > 200


def test_an_interval_holds_the_runs_whose_error_is_no_larger() -> None:
    margin = Margin(0.02, 100, "runs")
    low, high = margin.interval(1000)
    assert low <= 1000 / 1.02 and high >= 1000 / 0.98 and high - low <= 42
    assert margin.upper(margin.within(1020)) <= 1020
    shown = [Margin(error, 1, "").percent for error in (0.02, 0.0017, 0.123)]
    assert shown == ["2 %", "0.17 %", "14 %"]


def test_a_prediction_has_the_interval_of_its_group() -> None:
    here, elsewhere = predict(transformer(gpu="h200")), predict(transformer(gpu="rtx-4090"))
    for prediction, name in ((here, RECORDED), (elsewhere, OTHER_CARD)):
        assert prediction.interval == margin_of(name).interval(prediction.device_bytes)
        assert prediction.interval[1] == prediction.with_margin_bytes
        assert prediction.reserved_interval == margin_of(name).interval(prediction.peak_reserved_bytes)
    assert interval(here) == "", "a few MiB"
    wide = dataclasses.replace(elsewhere, margin=Margin(0.1, 1, ""), device_bytes=10 * 2**30)
    assert interval(wide) == " ± 1.1"


def test_a_card_is_comfortable_with_the_margin_of_that_card() -> None:
    trace = transformer(gpu="h200")
    taken = predict(trace).device_bytes
    h200, other = find_gpu("h200"), find_gpu("rtx-4090")
    room = margin_of(RECORDED).upper(taken)
    tight = [
        dataclasses.replace(gpu, total_memory_bytes=room - h200.context_bytes + gpu.context_bytes)
        for gpu in (h200, other)
    ]
    first, second = card_fits(trace, tight)
    assert first.fits and first.comfortable
    assert second.fits and not second.comfortable


def test_convolutions_count_from_a_few_modules_on() -> None:
    assert not has_many_convolutions(transformer())
    trace = transformer(layers=module.CONVOLUTION_HEAVY)
    as_convolutions = trace.changed(ops=["aten.convolution" if op == "aten.mm" else op for op in trace.ops])
    assert has_many_convolutions(as_convolutions)
    attention = "aten._scaled_dot_product_cudnn_attention"
    assert not has_many_convolutions(trace.changed(ops=[attention if op == "aten.mm" else op for op in trace.ops]))


@pytest.mark.parametrize("name", [RECORDED, ASSUMED, OTHER_CARD, OTHER_CARD_CONVOLUTIONS])
def test_errors_grow_with_the_share_of_runs(name: str) -> None:
    data = json.loads(Path(module.__file__).with_name("errors.json").read_text(encoding="utf-8"))
    within = data["groups"][name]["within"]
    assert list(within.values()) == sorted(within.values())
