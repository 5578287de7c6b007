"""Commands that name a config file instead of flags are read as that file, with what the command changes in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from vramcast.base.errors import UsageError
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request

CONFIGS = Path(__file__).parent / "configs"
MODEL = str(CONFIGS / "llama-tiny")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llama_factory.yaml", "axolotl_qlora.yaml", "torchtune_lora.yaml", "unsloth_lora.yaml"):
        shutil.copy(CONFIGS / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)


def read(command: str, model: str | None = MODEL) -> LoadedJob:
    return load_job(None, request=Request(model=model, arguments=tuple(command.split())))


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("llamafactory-cli train llama_factory.yaml", "llama_factory.yaml"),
        ("torchrun --nproc_per_node 1 src/train.py llama_factory.yaml", "llama_factory.yaml"),
        ("axolotl train axolotl_qlora.yaml", "axolotl_qlora.yaml"),
        ("accelerate launch -m axolotl.cli.train axolotl_qlora.yaml", "axolotl_qlora.yaml"),
        ("unsloth train --config unsloth_lora.yaml", "unsloth_lora.yaml"),
    ],
)
def test_a_command_means_what_its_file_says(command: str, file: str) -> None:
    there = load_job(file, request=Request(model=MODEL))
    said, expected = read(command).job.model_dump(), there.job.model_dump()
    for job in (said, expected):
        job["gpus"]["count"] = 1
    assert said == expected


def test_what_follows_the_file_changes_it() -> None:
    factory = read("llamafactory-cli train llama_factory.yaml per_device_train_batch_size=3 --cutoff_len 256").job
    assert (factory.effective_sizes["batch"], factory.effective_sizes["sequence"]) == (3, 256)
    assert read("axolotl train axolotl_qlora.yaml --micro-batch-size 7").job.effective_sizes["batch"] == 7
    tune = "tune run --nproc_per_node 4 lora_finetune_distributed --config torchtune_lora.yaml"
    job = read(f"{tune} batch_size=5 tokenizer.max_seq_len=384", None).job
    assert (job.effective_sizes["batch"], job.effective_sizes["sequence"]) == (5, 384)
    assert (job.gpus.count, job.gpus.effective_strategy) == (4, "fsdp")


def test_launchers_count() -> None:
    assert read("torchrun --nproc_per_node 2 src/train.py llama_factory.yaml").job.gpus.count == 2


def test_a_shell_script_may_name_a_file(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("export X=1\naccelerate launch src/train.py llama_factory.yaml\n")
    loaded = load_job("train.sh", request=Request(model=MODEL))
    assert "LLaMA-Factory" in loaded.recognised_as


def test_swift(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("model: x\ntuner_type: lora\nmax_length: 640\nlora_rank: 4\n")
    for command in ("swift sft sft.yaml", "swift sft --config sft.yaml"):
        job = read(f"{command} --lora_rank 16").job
        lora = job.components["model"].lora
        assert job.effective_sizes["sequence"] == 640 and lora is not None and lora.rank == 16


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("axolotl train none.yaml", "no such file: none.yaml"),
        ("tune run full_finetune_single_device --config llama2/7B_full", "`tune cp llama2/7B_full FILE` copies it"),
        ("python train.py other.yaml", "other.yaml is not recognised as a config that says how to train"),
        ("python train.py llama_factory.yaml --per_device_train_batch_size 2", "and flags beside it"),
    ],
)
def test_mistakes(tmp_path: Path, command: str, message: str) -> None:
    (tmp_path / "other.yaml").write_text("width: 3\n")
    with pytest.raises(UsageError) as error:
        read(command)
    assert message in str(error.value)


def test_a_file_of_data_beside_flags_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("[]")
    job = read("python train.py data.json --per_device_train_batch_size 2 --model_name_or_path x").job
    assert job.effective_sizes["batch"] == 2
