"""ZeRO as a config says it: read from each tool's own file, and run by DeepSpeed's engine where that is installed."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli.cards_options import several_gpus_changes
from vramcast.errors import CannotPredict, UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.jobs.training.zero import _options
from vramcast.prediction.predict import predict

MODEL = str(Path(__file__).parent / "configs" / "llama-tiny")
RANKS, LAYERS, WIDTH = 8, 4, 512
COUNT = LAYERS * (4 * WIDTH * WIDTH - WIDTH * WIDTH + 3 * 4 * WIDTH * WIDTH + 2 * WIDTH) + WIDTH + 2 * 1000 * WIDTH
"""Keys and values have half as many heads as queries."""

needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None or find_spec("transformers") is None, reason="DeepSpeed is not installed"
)


def job(stage: int, **more: Any) -> LoadedJob:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS}
    return load_job(
        MODEL,
        {
            "sizes": {"batch": 1, "sequence": 16},
            "components.model.config": sizes,
            "precision": "bf16",
            "optimizer": {"name": "adamw", "arguments": {"fused": True}},
            "gpus": {
                "count": RANKS,
                "strategy": "deepspeed",
                "zero_stage": stage,
                "zero": {"reduce_bucket_size": "auto"},
            },
            **more,
        },
    )


@needs_deepspeed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_rank_holds_its_share(stage: int) -> None:
    held = predict(job(stage), gpu="h100")
    table = held.parameters
    assert table.count == table.trained_count == COUNT
    assert held.account.part("optimizer state") == pytest.approx(8 * COUNT / RANKS, rel=0.01), "both moments"
    assert table.optimizer_bytes == pytest.approx(12 * COUNT / RANKS, rel=0.01), "and the fp32 copy"
    assert table.weights_bytes == pytest.approx(2 * COUNT / (1 if stage < 3 else RANKS), rel=0.01)
    assert "ZeRO stage" in " ".join(note.text for note in held.notes)


@needs_deepspeed
def test_two_predictions_in_one_process_are_the_same() -> None:
    first, second = (predict(job(2), gpu="h100").peak_allocated_bytes for _ in range(2))
    assert first == second


@needs_deepspeed
def test_a_bucket_takes_what_it_says() -> None:
    small, large = (
        predict(job(2, **{"gpus.zero": {"reduce_bucket_size": size, "overlap_comm": False}}), gpu="h100")
        for size in (1_000_000, 100_000_000)
    )
    assert large.peak_allocated_bytes - small.peak_allocated_bytes >= 2 * 50_000_000


def test_without_deepspeed_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramcast.jobs.training.zero.find_spec", lambda name: None)
    with pytest.raises(CannotPredict, match=r"pip install deepspeed.*--set gpus\.strategy=ddp"):
        predict(job(2), gpu="h100")


def test_buckets_are_read_as_the_file_says_them(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    said = {"stage": 3, "reduce_bucket_size": "auto", "stage3_max_live_parameters": 1e9, "overlap_comm": True}
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": said}))
    assert load_job(str(path), request=Request(model=MODEL)).job.gpus.zero == {
        name: value for name, value in said.items() if name != "stage"
    }
    path.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {**said, "mics_shard_size": 4}})
    )
    with pytest.raises(CannotPredict, match="mics_shard_size"):
        load_job(str(path), request=Request(model=MODEL))


def test_auto_is_what_the_trainer_fills_in_or_else_left_to_deepspeed() -> None:
    said = {"reduce_bucket_size": "auto", "overlap_comm": "auto", "sub_group_size": 7}
    assert _options(said, {"hidden_size": 8}) == {"reduce_bucket_size": 64, "sub_group_size": 7}
    assert _options(said, {}) == {"sub_group_size": 7}


def test_a_key_that_deepspeed_does_not_have() -> None:
    with pytest.raises(UsageError, match="zero: there is no 'reduce_buckets'"):
        job(2, **{"gpus.zero": {"reduce_buckets": 1}})


def test_the_option_says_the_stage() -> None:
    said = argparse.Namespace(cards_per_node=8, nodes=None, parallel="zero2")
    assert several_gpus_changes(said) == {
        "gpus.count": 8,
        "gpus.per_node": 8,
        "gpus.strategy": "deepspeed",
        "gpus.zero_stage": 2,
    }


def test_a_program_whose_flags_are_not_read_is_named() -> None:
    words = ("deepspeed", "--module", "openrlhf.cli.train_sft", "--train.micro_batch_size", "2")
    with pytest.raises(CannotPredict, match="OpenRLHF"):
        load_job(None, request=Request(arguments=words))
