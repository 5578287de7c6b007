"""Changes said in the user's own format: applied and read back, every format gives exactly the job that was meant."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vramcast.base.access import CodeGate
from vramcast.jobs.editing.by_hand import by_hand
from vramcast.jobs.editing.rewrite import Rewritten, rewrite
from vramcast.jobs.equality import same_run
from vramcast.jobs.load import FLAGS, LoadedJob, load_job, with_overrides
from vramcast.jobs.readers import Request

CONFIGS = Path(__file__).parent / "configs"
CLIP, UNET = "tests.jobs.lit:Clip", "tests.jobs.lit:UNet2d"
COMMAND = (
    "accelerate launch --config_file accelerate_ddp.yaml run_clm.py --model_name_or_path llama-tiny --block_size=128"
)
ALLOCATOR = {"allocator_conf": "expandable_segments:True"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(CONFIGS, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES: dict[str, tuple[str | None, Request, dict[str, Any], set[str]]] = {
    # what is read, what beside it, the changes, and those that no file can say
    "arguments-json": (
        "training_args.json",
        Request(),
        {
            "sizes.batch": 2,
            "accumulation": 16,
            "sizes.sequence": 64,
            "checkpointing": "none",
            "precision": {"preset": "fp16", "tf32": True},
            "optimizer": {"name": "adamw8bit", "decay_groups": True},
            **ALLOCATOR,
        },
        {"allocator_conf"},
    ),
    "arguments-yaml": (
        "training_args.yaml",
        Request(),
        {"sizes.batch": 1, "accumulation": 8, "checkpointing": "none", "precision": "pure-bf16", **ALLOCATOR},
        {"allocator_conf"},
    ),
    "llama-factory": (
        "llama_factory.yaml",
        Request(),
        {"sizes.batch": 1, "accumulation": 16, "sizes.sequence": 64, "checkpointing": "none"},
        set(),
    ),
    "shell": (
        "run_clm.sh",
        Request(),
        {"sizes.batch": 2, "accumulation": 16, "precision": "fp32", "checkpointing": "none", **ALLOCATOR},
        set(),
    ),
    "command": (
        None,
        Request(arguments=tuple(COMMAND.split())),
        {"sizes.batch": 2, "accumulation": 4, "precision": "fp16", "checkpointing": "all", **ALLOCATOR},
        set(),
    ),
    "flags": (
        "llama-tiny",
        Request(arguments=("--per_device_train_batch_size", "4", "--bf16")),
        {"sizes.batch": 2, "accumulation": 2, "precision": "fp32", "sizes.sequence": 64, **ALLOCATOR},
        {"allocator_conf", "sizes.sequence"},
    ),
    "accelerate": (
        "llama-tiny",
        Request(parts=("accelerate_ddp.yaml",)),
        {"precision": "fp16", "checkpointing": "all", "gpus.count": 4},
        {"checkpointing"},
    ),
    "arguments-and-accelerate": (
        "training_args.json",
        Request(parts=("accelerate_ddp.yaml",)),
        {"sizes.batch": 1, "accumulation": 32, "precision": {"preset": "fp32", "tf32": True}},
        set(),
    ),
    "deepspeed": (
        "llama-tiny",
        Request(parts=("ds_zero0.json",)),
        {"sizes.batch": 1, "accumulation": 16, "precision": "bf16", "optimizer": "sgd"},
        set(),
    ),
    "lightning": (
        "lightning.yaml",
        Request(parts=("lightning_inputs.yaml",), gate=CodeGate(allowed=True)),
        {
            "sizes.batch": 8,
            "accumulation": 16,
            "precision": "pure-bf16",
            "gpus.gradient_as_bucket_view": True,
            "optimizer": {"name": "adamw8bit", "arguments": {"lr": 0.1}},
            "checkpointing": "all",
        },
        {"checkpointing"},
    ),
    "kair": (
        "kair_gopro.json",
        Request(model=CLIP),
        {
            "gpus.global_batch": 2,
            "accumulation": 2,
            "sizes.height": 16,
            "sizes.width": 16,
            "sizes.frames": 4,
            "optimizer": "adamw",
            "precision": "bf16",
        },
        {"accumulation", "precision"},
    ),
    "diffsr": (
        "diffsr_unet.yaml",
        Request(model=UNET),
        {
            "gpus.global_batch": 4,
            "accumulation": 16,
            "sizes.height": 32,
            "sizes.width": 32,
            "optimizer": "sgd",
            "precision": "fp32",
            "checkpointing": "all",
        },
        {"checkpointing"},
    ),
    "torchtitan": (
        "torchtitan_debug.toml",
        Request(),
        {
            "sizes.batch": 2,
            "accumulation": 4,
            "sizes.sequence": 128,
            "precision": "fp32",
            "checkpointing": {"scope": "modules", "modules": ["model.layers.2", "model.layers.5"]},
            "optimizer": {"name": "adam", "arguments": {"foreach": True}},
        },
        set(),
    ),
}


def _apply(found: Rewritten, loaded: LoadedJob) -> LoadedJob:
    """What the user has after pasting, read as a file like any other."""
    for path, text in found.texts.items():
        path.write_text(text, encoding="utf-8")
    request = dataclasses.replace(loaded.request, arguments=found.arguments)
    return load_job(None if loaded.where == FLAGS else loaded.where, found.beside, request)


def _comments(text: str) -> list[str]:
    return [
        line.partition("//")[2] or line.partition("#")[2] for line in text.splitlines() if "//" in line or "#" in line
    ]


@pytest.mark.parametrize("case", CASES)
def test_pasted_and_read_back_it_is_the_job(case: str, here: Path) -> None:
    where, request, changes, beside = CASES[case]
    loaded = load_job(where, {}, request)
    before = {path: path.read_text() for path in here.iterdir() if path.is_file()}
    found = rewrite(loaded, changes)
    assert set(found.beside) == beside
    assert found.says_something
    read = _apply(found, loaded)
    assert same_run(read.job, with_overrides(loaded.job, changes))
    for path in found.texts:
        assert _comments(path.read_text()) == _comments(before[here / path])
    assert all(line for line in by_hand(loaded.job, found.beside))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sizes: {batch: 8}", {"sizes.batch": 4, "accumulation": 2, **ALLOCATOR}),
        ("gpus: 2", {"sizes.batch": 4, "gpus.gradient_as_bucket_view": True}),
        ("gpus: {count: 2, global_batch: 8}", {"gpus.global_batch": 4, "precision": "bf16"}),
        ("optimizer: adamw", {"optimizer.arguments.fused": True, "checkpointing.scope": "all"}),
    ],
)
def test_a_vramcast_yaml_says_everything(name: str, changes: Mapping[str, Any], here: Path) -> None:
    path = here / "vramcast.yaml"
    path.write_text(f"components: {{model: {{factory: tests.jobs.tiny:mixer}}}}  # mine\n{name}\n")
    loaded = load_job(str(path), request=Request(gate=CodeGate(allowed=True)))
    found = rewrite(loaded, changes)
    assert not found.beside and "# mine" in found.texts[path]
    assert same_run(_apply(found, loaded).job, with_overrides(loaded.job, changes))


def test_options_that_were_typed_are_said_too(here: Path) -> None:
    loaded = load_job("training_args.json", {"sizes.batch": 6, "torch_compile": True})
    found = rewrite(loaded, {"accumulation": 3})
    assert '"per_device_train_batch_size": 6' in found.texts[Path("training_args.json")]
    assert found.beside == {"torch_compile": True}


def test_a_config_that_another_names_is_changed_with_it(here: Path) -> None:
    text = Path("training_args.json").read_text().replace('"bf16": true,', '"deepspeed": "ds.json",')
    Path("training_args.json").write_text(
        text.replace('"gradient_checkpointing_kwargs": {"use_reentrant": false},', "")
    )
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8, "fp16": {}}')
    loaded = load_job("training_args.json")
    found = rewrite(loaded, {"sizes.batch": 2, "accumulation": 16})
    assert len(found.texts) == 2 and not found.beside
    assert _apply(found, loaded).job.sizes["batch"] == 2


def test_what_means_something_else_is_not_written(here: Path) -> None:
    """`use_checkpoint` would reach DiffSR's class as an argument, which is not what checkpointing a job means."""
    loaded = load_job("diffsr_unet.yaml", {}, Request(model=UNET))
    found = rewrite(loaded, {"checkpointing": "all"})
    assert not found.says_something and found.beside == {"checkpointing": "all"}


def test_a_script_that_sets_the_allocator_is_read_so(here: Path) -> None:
    script = Path("run_clm.sh").read_text()
    Path("run_clm.sh").write_text(f"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n{script}")
    assert load_job("run_clm.sh").job.allocator_conf == "expandable_segments:True"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("allocator_conf", "expandable_segments:True", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ("accumulation", 4, "(loss / 4).backward()"),
        ("checkpointing", "all", "checkpoint(block, x, use_reentrant=False)"),
        ("precision", "fp16", "dtype=torch.float16):  # around the forward pass and the loss, and a torch.amp.Gra"),
        ("precision", "pure-bf16", "model.to(torch.bfloat16)"),
        ("optimizer", {"name": "adam", "arguments": {"fused": True}}, "torch.optim.Adam(parameters, fused=True)"),
        ("gpus.gradient_as_bucket_view", True, "gradient_as_bucket_view=True"),
        ("sizes.batch", 3, "batch_size=3"),
        ("outputs_live_until", "step", "outputs_live_until: step  # as vramcast.yaml says it"),
    ],
)
def test_what_no_file_says_is_a_line_of_python_or_of_the_shell(key: str, value: Any, said: str) -> None:
    assert said in by_hand(load_job("tests.jobs.tiny:JOB").job, {key: value})[0]
