"""`vramcast compare` with jobs: scenarios side by side, one that cannot be predicted told, saved results among them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vramcast
from vramcast.cli.main import main
from vramcast.errors import UsageError
from vramcast.jobs.load import load_job
from vramcast.prediction.predict import as_loaded

JOB = "tests.jobs.tiny:JOB"
YAML = """
name: policy
components:
  encoder: {factory: "tests.jobs.tiny:mixer", arguments: {classes: 64}, inputs: [x], mode: frozen}
  head: {factory: "tests.jobs.tiny:mixer", inputs: [encoder]}
inputs:
  x: {shape: [batch, 64]}
  labels: {shape: [batch], dtype: int64, below: 10}
sizes: {batch: 20000}
scenarios:
  everything: {components.encoder.mode: trained}
  small: {components: {encoder: {mode: trained}}, sizes: {batch: 100}}
"""
same_torch = pytest.mark.skipif(not torch.__version__.startswith("2.11"), reason="the golden output is of torch 2.11")


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "vramcast.yaml"
    path.write_text(YAML)
    return str(path)


@same_torch
def test_golden(job_file: str, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]) -> None:
    argv = ["compare", "--allow-code", job_file, "#everything", "#inference", "#offload", "--gpu", "rtx-4090", "--full"]
    assert main([*argv, "--scenario", "sgd: optimizer=sgd components.encoder.mode=trained"]) == 0
    golden("scenarios", capsys.readouterr().out)


def test_one_job_is_compared_with_its_scenarios(job_file: str) -> None:
    found = vramcast.compare([job_file], gpu="rtx-4090", allow_code=True)
    assert [row.name for row in found.scenarios.rows] == ["policy", "everything", "small"]
    base, everything, small = (row.prediction for row in found.scenarios.rows)
    assert base is not None and everything is not None and small is not None
    assert small.device_bytes < base.device_bytes < everything.device_bytes
    for row in found.scenarios.rows:
        assert row.prediction is not None
        assert sum(row.part_bytes().values()) == row.prediction.device_bytes
    assert "<table>" in found._repr_html_()


def test_a_scenario_is_a_job_for_every_verb(job_file: str) -> None:
    loaded = as_loaded(f"{job_file}#small", allow_code=True)
    assert loaded.job.sizes["batch"] == 100 and loaded.job.components["encoder"].mode == "trained"
    assert loaded.job.scenarios == {} and loaded.job.name == "policy#small"
    assert load_job(f"{JOB}#inference").job.task == "inference"


def test_json(job_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--allow-code", job_file, "#offload", f"{job_file}#small", "--gpu", "t4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == "vramcast-comparison" and document["version"] == 1
    first, offload, small = document["scenarios"]
    assert offload["problem"] is None and offload["device_bytes"] < first["device_bytes"]
    assert small["trained_parameters"] > first["trained_parameters"]
    assert document["rows"], "line by line too"


def test_jobs_beside_saved_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, result = tmp_path / "a.trace", tmp_path / "b.json"
    assert main(["predict", JOB, "--gpu", "t4", "--save", str(trace), "--json"]) == 0
    result.write_text(capsys.readouterr().out)
    assert main(["compare", str(trace), str(result), JOB, "--gpu", "t4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    reserved = next(row for row in document["rows"] if row["name"] == "reserved")
    assert len(set(reserved["values"])) == 1
    assert main(["compare", JOB, f"{JOB}#inference", "--gpu", "t4", "--lines"]) == 0
    assert "differences are from" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([JOB, "#infrence"], "did you mean 'inference'"),
        ([JOB, "--scenario", "nothing"], "write a name, a colon and changes"),
        ([JOB, "--scenario", "a: sizes.batch"], "--scenario sizes.batch: write KEY=VALUE"),
        ([JOB, "--scenario", "a: sizes.batch=-1"], "scenario a: sizes.batch"),
        ([JOB, "--scenario", "a: optimizer='x"], "--scenario a"),
        ([JOB, "nothing-here"], "no such file or folder"),
    ],
)
def test_bad_input_is_a_message(capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    assert main(["compare", *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_misspelt_scenario_of_a_file(job_file: str) -> None:
    with pytest.raises(UsageError, match="did you mean 'everything'"):
        as_loaded(f"{job_file}#everthing", allow_code=True)
