"""A model that is divided over cards: what each rank holds, and which ranks are run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.cli.main import main
from vramcast.jobs.load import LoadedJob, load_job, with_overrides
from vramcast.jobs.stage_layers import layers_of
from vramcast.prediction.predict import predict
from vramcast.prediction.ranks import distinct_ranks, equal_stages, predict_distinct_ranks

WIDTH, HIDDEN, LAYERS, VOCABULARY = 256, 512, 8, 2000
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}  # fmt: skip
HEAD = WIDTH // 8
OF_LAYER = 2 * WIDTH * WIDTH + 2 * WIDTH * 4 * HEAD + 3 * WIDTH * HIDDEN
NORMS = (2 * LAYERS + 1) * WIDTH
PARAMETERS = LAYERS * OF_LAYER + NORMS + 2 * VOCABULARY * WIDTH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def load(folder: Path, **changes: Any) -> LoadedJob:
    sizes = {"sizes.batch": 1, "sizes.sequence": 64, "precision": "bf16"}
    return load_job(str(folder), {**sizes, **{key.replace("__", "."): value for key, value in changes.items()}})


def weights(loaded: LoadedJob) -> int:
    return predict(loaded, "h100", steps=2).account.part("weights")


@pytest.mark.parametrize(("count", "copies"), [(4, 1), (8, 2)])
def test_fsdp_holds_a_share_of_the_weights(folder: Path, count: int, copies: int) -> None:
    strategy = {"gpus__strategy": "fsdp"} if copies == 1 else {"gpus__strategy": "hsdp", "gpus__replicas": copies}
    found = weights(load(folder, gpus__count=count, **strategy))
    assert found == 4 * PARAMETERS * copies // count


def test_tensor_parallel_splits_what_the_plan_says(folder: Path) -> None:
    """The embedding and the norms are whole on every card."""
    split = LAYERS * OF_LAYER + VOCABULARY * WIDTH
    found = weights(load(folder, gpus__count=4, gpus__tensor=4))
    assert found == 4 * (split // 4 + VOCABULARY * WIDTH + NORMS)


def test_stage_by_stage_as_if_each_were_run(folder: Path) -> None:
    """Stage 2 runs the passes of stage 1 in another order; its figures are those of a run of its own."""
    loaded = load(folder, gpus__count=16, gpus__strategy="fsdp", gpus__tensor=2, gpus__pipeline=4, accumulation=5)
    assert distinct_ranks(loaded.job.gpus) == (0, 4, 8, 12)
    assert equal_stages(loaded.job) == [[0], [1, 2], [3]]
    shown, figures = predict_distinct_ranks(loaded, "h100")
    assert [figure.rank for figure in figures] == [0, 4, 8, 12]
    assert shown.peak_reserved_bytes == max(figure.peak_reserved_bytes for figure in figures)
    alone = dataclasses.replace(loaded, job=with_overrides(loaded.job, {"gpus.rank": 8}))
    found = predict(alone, "h100")
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (
        figures[2].peak_allocated_bytes,
        figures[2].peak_reserved_bytes,
    )
    assert figures[1].peak_allocated_bytes > figures[2].peak_allocated_bytes  # one microbatch more is under way


def test_layers_are_dealt_out_evenly() -> None:
    dealt = [layers_of(stage, 16, 126) for stage in range(16)]
    assert [len(layers) for layers in dealt] == [8] * 14 + [7] * 2
    assert [layer for layers in dealt for layer in layers] == list(range(126))


def test_samples_of_a_step(folder: Path) -> None:
    job = load(folder, gpus__count=16, gpus__strategy="fsdp", gpus__tensor=2, gpus__pipeline=4).job
    assert job.passes == 4  # as many microbatches as stages
    assert job.samples_per_step == 4 * 2


def test_what_cannot_be_divided(folder: Path) -> None:
    with pytest.raises(UsageError, match="cannot be divided into tensor 3"):
        load(folder, gpus__count=8, gpus__tensor=3)
    with pytest.raises(CannotPredict, match="8 layers cannot be cut into 16 stages"):
        predict(load(folder, gpus__count=16, gpus__pipeline=16, gpus__rank=0), "h100")
    with pytest.raises(CannotPredict, match="write strategy: fsdp"):
        predict(load(folder, gpus__count=8, gpus__tensor=4), "h100")


def test_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(folder), "--gpu", "h100", "--batch", "1", "--seq", "64", "--precision", "bf16", "--json"]
    assert main([*words, "--gpus", "4", "--nodes", "2", "--parallel", "fsdp+tp=2"]) == 0
    document = json.loads(capsys.readouterr().out)
    gpus = document["job"]["gpus"]
    assert (gpus["count"], gpus["per_node"], gpus["tensor"], gpus["strategy"]) == (8, 4, 2, "fsdp")
    assert document["ranks"][0]["rank"] == 0
    assert main([*words, "--gpus", "4", "--parallel", "magic"]) == 2
    assert "write ddp, fsdp, hsdp, zero1 to zero3, tp or pp" in capsys.readouterr().out
    assert main([*words, "--gpus", "4", "--parallel", "cp=4"]) == 3
    assert main([*words, "--parallel", "fsdp"]) == 2
