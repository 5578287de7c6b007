"""The config that advise prints, pasted into the user's own files, predicts exactly what was advised."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.jobs.test_rewrite import CLIP, CONFIGS, UNET
from vramcast.base.access import CodeGate
from vramcast.cli.job_options import load
from vramcast.cli.main import main, make_parser, split_flags
from vramcast.jobs.load import load_job
from vramcast.jobs.readers import Request

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the model is one of transformers"
)
MEMORY = "2GiB"
RARE = ("offload", "gpus", "gradients")
"""So that fewer runs are traced."""
KEPT = ("checkpointing", "optimizer", "sequence", "loss", *RARE)
"""Of the larger model."""
CASES: dict[str, tuple[str, Request, tuple[str, str]]] = {
    "lightning": (
        "lightning.yaml",
        Request(parts=("lightning_inputs.yaml",), gate=CodeGate(allowed=True)),
        ("batch_size: 32", "batch_size: 400000"),
    ),
    "kair": ("kair_gopro.json", Request(model=CLIP), ('"gt_size": 32', '"gt_size": 1024')),
    "diffsr": ("diffsr_unet.yaml", Request(model=UNET), ("train_batchsize: 8", "train_batchsize: 4096")),
    "arguments": (
        "training_args.json",
        Request(),
        ('"per_device_train_batch_size": 4', '"per_device_train_batch_size": 2048'),
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(CONFIGS, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    config = Path("llama-tiny/config.json")
    config.write_text(config.read_text().replace('"num_hidden_layers": 4', '"num_hidden_layers": 1'))
    return tmp_path


def _job(case: str) -> Any:
    name, request, (old, new) = CASES[case]
    text = Path(name).read_text(encoding="utf-8")
    assert old in text
    Path(name).write_text(text.replace(old, new))
    return load_job(name, {}, request)


@pytest.mark.parametrize(
    "case",
    [
        "lightning",
        "kair",
        "diffsr",
        pytest.param("arguments", marks=[needs_transformers, pytest.mark.slow]),
    ],
)
def test_pasted_it_predicts_what_was_advised(case: str, here: Path) -> None:
    found = vramcast.advise(_job(case), memory=MEMORY, keep=KEPT if case == "arguments" else RARE)
    assert not found.advice.asked.fits and found.best
    config = found.best[0].config
    assert config.kind == "diff"
    patch = subprocess.run(["patch", "-p0"], input=config.text + "\n", text=True, capture_output=True, check=False)
    assert patch.returncode == 0, patch.stdout + patch.stderr
    own, flags = split_flags(shlex.split(config.check)[1:])
    args = make_parser().parse_args(own)
    args.script_flags = flags
    read = vramcast.check(load(args), memory=args.memory)
    assert read.verdict.needed_bytes == found.best[0].prediction.device_bytes
    assert read.verdict.prediction.peak_reserved_bytes == found.best[0].prediction.peak_reserved_bytes


def test_a_new_file_of_the_same_format(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _job("diffsr")
    argv = ["advise", "diffsr_unet.yaml", "--model", UNET, "--memory", MEMORY, "--keep", ",".join(RARE)]
    assert main([*argv, "--write", "smaller.yaml", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"][0]
    assert best["config"]["kind"] == "diff"
    assert "normalizer_type: 'PGN'" in Path("smaller.yaml").read_text()
    own = load_job("smaller.yaml", {}, Request(model=UNET))
    assert own.job.effective_sizes["batch"] == best["batch"]
    assert vramcast.check(own, memory=MEMORY).verdict.needed_bytes == best["device_bytes"]
    # The same as a vramcast.yaml, by its name.
    found = vramcast.advise(load_job("diffsr_unet.yaml", {}, Request(model=UNET)), memory=MEMORY, keep=RARE)
    found.write("vramcast.yaml")
    assert vramcast.check("vramcast.yaml", memory=MEMORY, allow_code=True).verdict.needed_bytes == best["device_bytes"]


def test_several_files_make_a_folder(here: Path) -> None:
    found = vramcast.advise(_job("lightning"), memory=MEMORY, keep=("precision", "optimizer", *RARE))
    found.write("smaller")
    assert sorted(path.name for path in Path("smaller").iterdir()) == ["lightning.yaml", "lightning_inputs.yaml"]
    read = load_job(
        "smaller/lightning.yaml", {}, Request(parts=("smaller/lightning_inputs.yaml",), gate=CodeGate(allowed=True))
    )
    assert vramcast.check(read, memory=MEMORY).verdict.needed_bytes == found.best[0].prediction.device_bytes
    found.write("all.yaml")
    assert (
        vramcast.check("all.yaml", memory=MEMORY, allow_code=True).verdict.needed_bytes
        == found.best[0].prediction.device_bytes
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["kair_gopro.json", "--model", CLIP, "--write", "x.toml"], "ends with .json, or with .yaml"),
        (["lightning.yaml", "--with", "lightning_inputs.yaml", "--write", "x.json"], "name a new folder"),
        (["lightning.yaml", "--with", "lightning_inputs.yaml", "--write", "llama-tiny"], "nothing is overwritten"),
    ],
)
def test_where_nothing_can_be_written(
    argv: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", *argv, "--allow-code", "--memory", MEMORY]) == 2
    assert said in capsys.readouterr().err


@needs_transformers
def test_a_command_is_printed_with_its_own_flags(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "torchrun run_clm.py --model_name_or_path llama-tiny --per_device_train_batch_size 2048 --block_size 128"
    options = ["--memory", MEMORY, "--keep", ",".join((*KEPT, "precision"))]
    assert main(["advise", *options, "--write", "new.sh", "--json", "--", *flags.split()]) == 0
    best = json.loads(capsys.readouterr().out)["best"][0]
    assert best["config"]["kind"] == "flags"
    assert f"--per_device_train_batch_size {best['batch']}" in best["config"]["text"]
    assert main(["check", "--memory", MEMORY, "--json", "--", *shlex.split(best["config"]["text"])]) == 0
    assert json.loads(capsys.readouterr().out)["needed_bytes"] == best["device_bytes"]
    assert vramcast.check("new.sh", memory=MEMORY).verdict.needed_bytes == best["device_bytes"]
