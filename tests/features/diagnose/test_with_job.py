"""A log together with the job it is of, predicted and changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vramcast
from vramcast.cli.main import main
from vramcast.features.diagnose.logs import sample as q

S4 = [Path(__file__).with_name("logs") / name for name in ("s4_train.log", "s4_timing.log")]

MODEL = """\
import torch

def build(width: int = 2048, depth: int = 4) -> torch.nn.Module:
    layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*layers)
"""
JOB = """\
name: small
components:
  model:
    factory: "model.py:build"
    inputs: [x]
inputs:
  x: {shape: [batch, 4096, 2048]}
sizes: {batch: 1}
gpus: {count: 3}
loss: mean
optimizer: adamw
dataset: {size: 3000, epochs: 10, seconds_per_sample: 0.001, workers: 1}
target: h200
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def test_changes_are_traced_and_set_beside_the_measured_step(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *map(str, S4), "--job", str(job), "--allow-code", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_seconds"] == pytest.approx(6.0)
    sources = {part["phase"]: part["source"] for part in found["parts"]}
    assert sources[q.FORWARD] == "measured" and sources[q.BACKWARD] == sources[q.OPTIMIZER] == "predicted"
    assert found["epoch_seconds"] == pytest.approx(1000 * 6.0)
    rows = found["what_ifs"]
    assert {row["source"] for row in rows} == {"predicted"} and all(row["fits"] and row["device_bytes"] for row in rows)
    rates = [row["samples_per_second"] for row in rows]
    assert rates == sorted(rates, reverse=True) and min(rates) > 0.5
    for row in rows:
        # As many samples in all, at the new rate.
        assert row["total_seconds"] == pytest.approx(8880 * 3 / row["samples_per_second"])
    by_change = {row["change"]: row for row in rows}
    assert by_change["bf16 autocast"]["step_seconds"] < 6.0 < by_change["batch 4"]["step_seconds"]
    assert any(" + " in change for change in by_change), "the best together too"
    useless = {row["change"]: row["why"] for row in found["will_not_help"]}
    # Loading is hidden already: 1 ms beside 6 s.
    assert "+0% samples/s" in useless["2 loading workers"]
    # The optimizer's part is below 5 %: none of its knobs is traced.
    assert not any("Adam" in change for change in by_change)
    assert any("scaled by that" in note for note in found["notes"])


def test_without_changes_nothing_more_is_traced(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = vramcast.diagnose(S4, job, changes=False, allow_code=True, progress=said.append)
    assert found.diagnosis.what_ifs == () and found.prediction is not None
    assert found.diagnosis.predicted is not None
    assert not any(text.startswith("tracing") for text in said)
