"""`vramcast plan`: every run is predicted as it is, grows to the job that was wished for, and stops where it must."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import vramcast
from tests.jobs.test_rewrite import CLIP, CONFIGS
from tests.jobs.tiny import JOB as TINY
from vramcast.base import host_memory
from vramcast.cli.main import main
from vramcast.features.plan import checklist
from vramcast.features.plan.ramp import _ladder, rungs
from vramcast.jobs.equality import same_run
from vramcast.jobs.load import load_job
from vramcast.jobs.readers import Request

same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")
LARGE = {**TINY, "sizes": {"batch": 200_000}}


class _Disk(NamedTuple):
    total: int = 2**40
    used: int = 0
    free: int = 2**39


@pytest.fixture(autouse=True)
def same_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checklist.shutil, "disk_usage", lambda path: _Disk())
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 67108864 kB\nMemAvailable: 33554432 kB\n")
    monkeypatch.setattr(host_memory, "_MEMINFO", meminfo)


@pytest.fixture
def kair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copy(CONFIGS / "kair_gopro.json", "gopro.json"))
    path.write_text(path.read_text().replace('"gt_size": 32', '"gt_size": 384').replace('size": 4 //', 'size": 8 //'))
    return path


def test_every_run_is_what_predict_says_of_it() -> None:
    found = vramcast.plan({**TINY, "accumulation": 3}, gpu="rtx-4090")
    assert found.reached and found.ramp.advice is None
    batches = [(step.batch, step.accumulation) for step in found.steps]
    assert batches == [(1, 1), (8, 1), (64, 1), (512, 1), (512, 3)]
    assert dict(found.steps[-1].overrides) == {}
    for number in (0, 2, 4):
        read = vramcast.predict(found.job(number), "rtx-4090")
        assert read.device_bytes == found.steps[number].prediction.device_bytes
    needs = [step.prediction.device_bytes for step in found.steps]
    assert needs == sorted(needs)


def test_it_stops_where_it_does_not_fit_and_says_what_does() -> None:
    found = vramcast.plan(LARGE, memory="3GiB")
    assert not found.reached
    assert [step.fits for step in found.steps] == [True] * (len(found.steps) - 1) + [False]
    advice = found.ramp.advice
    assert advice is not None and advice.best[0].prediction.fits
    assert found.to_document()["stop"] == len(found.steps) - 1
    assert found._repr_html_().startswith('<div class="vramcast">')


@pytest.mark.parametrize(
    ("batch", "steps"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (64, [4, 16, 64]), (100, [4, 16, 64, 100])]
)
def test_the_batches_on_the_way(batch: int, steps: list[int]) -> None:
    assert _ladder(batch) == steps
    assert len(_ladder(200_000)) <= 5


def test_one_gpu_and_smaller_clips_come_first(kair: Path) -> None:
    found = rungs(load_job(str(kair), {}, Request(model=CLIP)))
    assert [rung.name for rung in found] == [
        "one sample of height 192, width 192, frames 2 on one GPU",
        "one sample on one GPU",
        "one sample on each of 2 GPUs",
        "batch 2",
        "as it is",
    ]


def test_each_run_in_the_users_own_format(kair: Path) -> None:
    found = vramcast.plan(load_job(str(kair), {}, Request(model=CLIP)), gpu="rtx-4090")
    text = kair.read_text()
    for number, step in enumerate(found.steps[:-1]):
        assert step.config.kind == "diff" and not step.config.beside
        subprocess.run(["patch", "-p0", "-s"], input=step.config.text + "\n", text=True, check=True)
        assert same_run(load_job(str(kair), {}, Request(model=CLIP)).job, found.job(number))
        kair.write_text(text)
    assert found.ramp.steps_key == "train.total_iter"
    assert any("train at step 20,000" in text for text in found.steps[0].watch)


def test_what_the_model_cannot_do_is_left_out() -> None:
    inputs = {"x": {"shape": ["batch", "height"]}, "labels": {"shape": ["batch"], "dtype": "int64", "below": 10}}
    found = vramcast.plan({**TINY, "inputs": inputs, "sizes": {"batch": 2, "height": 64}}, gpu="rtx-4090")
    assert found.reached and [step.name for step in found.steps] == ["one sample", "as it is"]
    assert "height 32" in found.ramp.left_out[0]


def test_what_to_check_first() -> None:
    job: dict[str, Any] = {**TINY, "ema": True, "gpus": 2}
    items = {item.name: item for item in vramcast.plan(job, gpu="rtx-4090").ramp.checks}
    result = vramcast.predict(job, "rtx-4090")
    weights, state = result.parameters.weights_bytes, result.parameters.optimizer_bytes
    assert items["disk"].needed_bytes == 2 * weights + state and items["disk"].ok
    assert items["computer's memory"].needed_bytes == 2 * weights
    assert items["computer's memory"].there_bytes == 2**35
    assert items["card"].ok is None


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["tests.jobs.tiny:JOB", "--gpu", "rtx-4091"], 2, "did you mean"),
        (["no-such.yaml"], 2, "no such file"),
        (["tests.jobs.tiny:not_a_job"], 2, "gives int"),
        ([], 2, "say what is trained"),
    ],
)
def test_nonsense_is_a_message(capsys: pytest.CaptureFixture[str], argv: list[str], code: int, said: str) -> None:
    assert main(["plan", *argv]) == code
    out, err = capsys.readouterr()
    assert not out and said in err and "Traceback" not in err


def test_what_cannot_be_predicted_ends_with_three(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(CONFIGS / "torchtitan_8b.toml"), "--gpu", "h100"]  # checkpointing by operator
    assert main(["plan", *argv]) == 3
    assert "Traceback" not in capsys.readouterr().err


@same_torch
def test_golden(kair: Path, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    argv = ["plan", str(kair), "--model", CLIP, "--memory"]
    assert main([*argv, "4GiB"]) == 0
    fits = capsys.readouterr().out
    assert main([*argv, "1200MiB"]) == 1
    text = f"{fits}\n{capsys.readouterr().out}"
    golden("plan", re.sub(r"torch 2\S+;", "torch 2.11;", text))
    assert main([*argv, "4GiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reached"] is True
