"""A script whose sizes follow from values is run again with the values computed, where that is a matter of seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vramcast.cli import second_runs
from vramcast.cli.second_runs import wants_values
from vramcast.scripts.runner import run_script
from vramcast.trace import COMPUTED_VALUES, UNKNOWN_SIZE

ROUNDS = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    kept = [model(torch.rand(4096, 256).cuda())]
    while kept[-1].abs().mean() > 0.01:
        kept.append(kept[-1] * 0.7)
    loss = torch.stack(kept).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def told(folder: Path, *options: str) -> dict[str, Any]:
    (folder / "train.py").write_text(ROUNDS, encoding="utf-8")
    return predicted(folder, *options)


def predicted(folder: Path, *options: str) -> dict[str, Any]:
    """In a process of its own, which forks before anything was traced."""
    command = [sys.executable, "-m", "vramcast", "run", "--gpu", "rtx-4090", "--json", *options, "train.py"]
    ran = subprocess.run(command, capture_output=True, check=False, cwd=folder, text=True)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def topics(prediction: dict[str, Any]) -> set[str]:
    return {note["topic"] for note in prediction["notes"]}


def test_rounds_that_follow_from_values_are_those_of_the_values(tmp_path: Path) -> None:
    asked, unasked = told(tmp_path, "--compute-values"), told(tmp_path)
    assert unasked["peak_reserved_bytes"] == asked["peak_reserved_bytes"]
    assert {COMPUTED_VALUES} == topics(unasked) & {COMPUTED_VALUES, UNKNOWN_SIZE}
    (note,) = (note for note in unasked["notes"] if note["topic"] == COMPUTED_VALUES)
    assert note["where"] == "train.py:10"


def test_a_second_run_begins_with_the_files_of_the_first(tmp_path: Path) -> None:
    """A file that the script caches is not there again."""
    cached = "import os\nassert not os.path.exists('cache')\nopen('cache', 'w').write('x')\n"
    (tmp_path / "train.py").write_text(cached + ROUNDS, encoding="utf-8")
    assert COMPUTED_VALUES in topics(predicted(tmp_path))
    assert not (tmp_path / "cache").exists()


def test_a_script_that_writes_for_real_is_run_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('runs', 'a').write('x')\n" + ROUNDS, encoding="utf-8")
    assert UNKNOWN_SIZE in topics(predicted(tmp_path, "--write-through"))
    assert (tmp_path / "runs").read_text(encoding="utf-8") == "x"


def test_values_stay_assumed_where_that_is_asked_for(tmp_path: Path) -> None:
    assert UNKNOWN_SIZE in topics(told(tmp_path, "--no-compute-values"))


@pytest.mark.parametrize("bound", ["_MOST_FLOPS", "_MOST_OF_MEMORY"])
def test_what_takes_long_is_not_computed_unasked(bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(ROUNDS, encoding="utf-8")
    assumed = run_script(str(tmp_path / "train.py"), gpu="rtx-4090")
    assert wants_values(assumed)
    monkeypatch.setattr(second_runs, bound, 0)
    assert not wants_values(assumed)
