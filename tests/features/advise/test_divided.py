"""Layouts in plain advice: a job that several cards hold only together is sharded before it is made smaller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.base.errors import UsageError
from vramcast.cli.main import main
from vramcast.features.advise.knobs.gpus import layout_option
from vramcast.features.advise.layout import layouts
from vramcast.features.advise.write import write_config
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, load_job, with_overrides
from vramcast.jobs.readers import Request
from vramcast.prediction.predict import predict

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 4096,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2000,
    "tie_word_embeddings": False,
}  # fmt: skip
MEMORY = "1.3GiB"
"""DDP needs 2.2 GiB here; sharded over four cards the job needs 1.0 or 1.1."""
ASKED = ["--memory", MEMORY, "--batch", "1", "--seq", "128"]
CHANGES = {"sizes.batch": 1, "sizes.sequence": 128, "gpus.count": 4, "gpus.per_node": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


SHARDED = [*ASKED, "--gpus", "4", "--keep", "offload,optimizer,precision,loss,allocator"]


def test_sharding_comes_before_what_changes_the_training(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["advise", str(folder), *SHARDED]
    config, job_file = tmp_path / "accelerate.yaml", tmp_path / "job.yaml"
    found = answer(capsys, *words, "--write", str(config))
    assert not found["asked"]["fits"]
    best = found["best"][0]
    assert [change["risk"] for change in best["changes"]] == ["same training"]
    assert best["overrides"]["gpus.strategy"] == "fsdp" and best["fits"]
    loaded = load_job(str(folder), CHANGES)
    again = predict(LoadedJob(job=with_overrides(loaded.job, best["overrides"])), GpuSpec.from_memory(MEMORY))
    assert again.peak_reserved_bytes == best["peak_reserved_bytes"]
    read_back = load_job(str(config), {"sizes.batch": 1, "sizes.sequence": 128}, Request(model=str(folder))).job
    assert (read_back.gpus.effective_strategy, read_back.gpus.count) == ("fsdp", 4)
    write_config(job_file, loaded, best["overrides"])
    assert load_job(str(job_file)).job.gpus == with_overrides(loaded.job, best["overrides"]).gpus


@pytest.mark.exhaustive
def test_the_fastest_layout_is_the_best_advice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", str(folder), *SHARDED]
    best = answer(capsys, *words)["best"][0]
    fastest = answer(capsys, *words, "--fastest")["ways"][0]
    assert fastest["layout"] == best["text"]
    assert fastest["step_seconds"] == pytest.approx(best["step_seconds"])
    assert fastest["peak_reserved_bytes"] == best["peak_reserved_bytes"]


def test_check_names_a_layout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder), *ASKED, "--gpus", "4", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    texts = [change["text"] for change in found["changes"]]
    assert texts[0].startswith("FSDP") and "FSDP" in texts
    assert all(change["fits"] for change in found["changes"])
    assert main(["check", str(folder), *ASKED, "--gpus", "4", "--parallel", "fsdp", "--json"]) == 0


def test_one_card_is_told_to_ask_for_more(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", str(folder), *ASKED, "--keep", "offload,optimizer,precision"]
    main([*words, "--json"])
    (question,) = json.loads(capsys.readouterr().out)["next_questions"]
    assert question.startswith("--fewest-gpus ")


def test_the_layout_that_is_there_is_no_option(folder: Path) -> None:
    job = load_job(str(folder), {**CHANGES, "gpus.strategy": "fsdp"}).job
    texts = {way.text: layout_option(job, way) for way in layouts(job) if not way.checkpoints}
    assert texts["FSDP"] is None
    kept = texts["FSDP, weights kept gathered"]
    assert kept is not None and kept.changes == {"gpus.strategy": "fsdp", "gpus.reshard_after_forward": False}
    split = texts["FSDP + TP 2, batch 2"]
    assert split is not None and split.changes["sizes.batch"] == 2 and "batch" in split.excludes


def test_a_launcher_is_not_told_what_it_cannot_say(folder: Path, tmp_path: Path) -> None:
    loaded = load_job(str(folder), CHANGES)
    with pytest.raises(UsageError, match=r"cannot say components\.model\.mode; write a vramcast\.yaml"):
        write_config(tmp_path / "accelerate.yaml", loaded, {"components.model.mode": "lora"})
