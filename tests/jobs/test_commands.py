"""`vramcast predict` and `vramcast init`: what they print and write, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vramcast.cli.main import main
from vramcast.jobs.load import load_job
from vramcast.trace import StepTrace

FOLDERS = Path(__file__).parent / "folders"
JOB = "tests.jobs.tiny:JOB"
# Versions appear in the report, and another torch chooses other kernels.
same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")


@pytest.fixture(autouse=True)
def fixed_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@same_torch
def test_the_whole_account(capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    argv = ["predict", JOB, "--gpu", "rtx-4090", "--batch", "20000", "--checkpointing", "all", "--precision", "bf16"]
    assert main([*argv, "--full", "--set", "dataset.size=1000000"]) == 0
    out, err = capsys.readouterr()
    golden("predict", out.replace(torch.__version__, "2.11.0"))
    assert "\x1b" not in out + err


def test_exit_code_when_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", JOB, "--gpu", "4GiB", "--batch", "400000"]) == 1
    assert "Does not fit a 4 GiB GPU" in capsys.readouterr().out


def test_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", JOB, "--gpu", "rtx-4090", "--limit", "40MiB"]) == 1
    assert "out of memory at" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", JOB, "--gpu", "rtx-4090", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-job-prediction"
    assert document["version"] == 1
    assert document["sizes"] == {"batch": 512}
    assert document["prediction"]["format"] == "vramcast-prediction"
    assert sum(document["prediction"]["account"]["parts"].values()) == document["device_bytes"]
    assert sum(child["count"] for child in document["parameters"]["children"]) == document["parameters"]["count"]
    assert document["job"]["sizes"] == {"batch": 512}


def test_the_trace_can_be_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.trace"
    assert main(["predict", JOB, "--gpu", "4GiB", "--batch", "400000", "--save", str(path)]) == 1
    assert StepTrace.load(path).steps == 3
    capsys.readouterr()
    assert main(["show", str(path)]) == 1, "the saved trace has the limit of the card"


def test_init_writes_a_job_and_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", str(FOLDERS / "cogvideox-5b")]) == 0
    text = (tmp_path / "vramcast.yaml").read_text()
    loaded = load_job("vramcast.yaml")
    assert list(loaded.job.components) == ["text_encoder", "vae", "transformer"]
    assert main(["init", str(FOLDERS / "bert-base")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "vramcast.yaml").read_text() == text
    assert main(["init", str(FOLDERS / "bert-base"), "--output", "bert.yaml"]) == 0
    assert load_job("bert.yaml").job.components["model"].source == "transformers"


def test_init_of_nothing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "no-such-folder"]) == 2
    assert main(["init", str(tmp_path)]) == 2
    assert main(["init"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_init_writes_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "vramcast.schema.json"
    assert main(["init", "--schema", str(path)]) == 0
    assert json.loads(path.read_text())["title"] == "vramcast.yaml"


def test_a_pipe_gets_plain_text() -> None:
    command = [sys.executable, "-m", "vramcast", "predict", JOB, "--gpu", "rtx-4090"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0
    assert not set("\x1b\r\b") & set(done.stdout + done.stderr)
