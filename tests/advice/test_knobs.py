"""Which options suit a job and a card."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.tiny import JOB as TINY
from vramcast.advice.combination import combinations
from vramcast.advice.knobs import KNOBS, knobs, options_for
from vramcast.advice.option import LAST_RESORT, RISKS, SAFE
from vramcast.gpus import find_gpu
from vramcast.jobs.load import with_overrides
from vramcast.jobs.validation import make_job

LLAMA = {"components": {"model": {"transformers": "tests/jobs/folders/llama-2-7b"}}}


def texts(job: dict[str, Any], knob: str, gpu: str = "rtx-4090") -> list[str]:
    return [option.text for option in options_for(make_job(job, "job"), find_gpu(gpu), ()).get(knob, [])]


def test_every_knob_is_called_by_its_file() -> None:
    assert tuple(knob.NAME for knob in knobs()) == KNOBS


def test_every_combination_is_a_job_that_keeps_the_batch_of_a_step() -> None:
    job = make_job({**TINY, "sizes": {"batch": 6}, "accumulation": 2}, "job")
    every = list(combinations(options_for(job, find_gpu("rtx-4090"), ()), LAST_RESORT))
    assert len(every) > 100
    for one in every:
        changed = with_overrides(job, one.changes)
        assert changed.effective_sizes["batch"] * changed.accumulation * changed.gpus.count == 12
        assert one.time > 0 and 0 <= one.risk < len(RISKS)
    assert all(one.risk == SAFE for one in combinations(options_for(job, find_gpu("rtx-4090"), ()), SAFE))


@pytest.mark.parametrize(
    ("change", "knob", "gpu", "expected"),
    [
        ({}, "precision", "rtx-4090", ["bf16 autocast", "weights in bf16"]),
        ({}, "precision", "t4", ["fp16 autocast", "weights in fp16"]),
        ({"precision": "bf16"}, "precision", "rtx-4090", ["weights in bf16"]),
        ({"precision": "pure-bf16"}, "precision", "rtx-4090", []),
        ({"precision": {"weights": "fp32"}}, "precision", "rtx-4090", []),
        ({"checkpointing": "all"}, "checkpointing", "rtx-4090", ["no checkpointing"]),
        ({"task": "inference"}, "checkpointing", "rtx-4090", []),
        ({"task": "inference"}, "optimizer", "rtx-4090", []),
        ({"optimizer": "sgd"}, "optimizer", "rtx-4090", []),
        ({"allocator_conf": "expandable_segments:True"}, "allocator", "rtx-4090", []),
        ({"sizes": {"sequence": 1024}}, "sequence", "rtx-4090", ["sequence 768", "sequence 512"]),
        ({}, "sequence", "rtx-4090", []),
        ({"sizes": {"frames": 17}}, "frames", "rtx-4090", ["frames 9", "frames 5"]),
        ({"sizes": {"height": 256, "width": 256}}, "resolution", "t4",
         ["height 192, width 192", "height 128, width 128"]),
        ({"sizes": {"batch": 6}}, "batch", "t4",
         ["batch 3, accumulation 2", "batch 2, accumulation 3", "batch 1, accumulation 6"]),
    ],
)  # fmt: skip
def test_options(change: dict[str, Any], knob: str, gpu: str, expected: list[str]) -> None:
    assert texts({**LLAMA, **change}, knob, gpu) == expected


def test_weights_in_bf16_are_not_given_fp32() -> None:
    assert texts(dict(TINY), "precision") == ["bf16 autocast"]


def test_the_global_batch_stays_global() -> None:
    job = {**{key: TINY[key] for key in ("components", "inputs")}, "gpus": {"count": 2, "global_batch": 8}}
    options = options_for(make_job(job, "job"), find_gpu("t4"), ())["batch"]
    assert options[0].changes == {"gpus.global_batch": 4, "accumulation": 2}


def test_a_step_of_its_own_has_no_knobs_but_the_allocator() -> None:
    job = make_job({"step": {"factory": "tests.jobs.tiny:step"}, "sizes": {"batch": 4}}, "job")
    assert list(options_for(job, find_gpu("rtx-4090"), ())) == ["allocator"]
