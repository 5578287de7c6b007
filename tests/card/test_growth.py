"""Memory that every step leaves behind is found, with the line that makes it, and is part of the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.card.scripts import notes, runner
from vramcast.base.units import GIB, MIB
from vramcast.memory import predict
from vramcast.memory.growth import MANY_STEPS
from vramcast.report.documents import prediction_document
from vramcast.report.wording import verdict
from vramcast.scripts.growing import LOOKED_AT, THRESHOLD_BYTES
from vramcast.trace import StepTrace

TRAINING = """
import torch
from collections import deque
from torch import nn

class Replay:
    def __init__(self):
        self.memory = []

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept, seen, total, replay, latest = [], {{"outputs": []}}, 0, Replay(), deque(maxlen=4)
bank = torch.zeros(0, 1024, device="cuda")
lengths = torch.randint(512, 4096, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
{setup}
for step in range(400):
    x = torch.randn({batch}, 1024, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    {action}
"""
ACTION_LINE = 22

INPUT, HIDDEN = 4096 * 1024 * 4, 4096 * 4096 * 4
GROWING = {
    "a graph kept by mistake": ("total = total + model(x).mean()", INPUT + HIDDEN, "the graph of total", True),
    "losses with their graphs": ("kept.append(model(x).mean())", INPUT + HIDDEN, "kept", True),
    "outputs in a list": ("kept.append(model(x).detach())", INPUT, "kept", True),
    "outputs in a list in a dict": ("seen['outputs'].append(model(x).detach())", INPUT, "seen", True),
    "a replay cache": ("replay.memory.append((x, loss.detach()))", INPUT, "replay.memory", False),
    "a buffer that grows": ("bank = torch.cat([bank, x])", INPUT, "bank", True),
}


def script(action: str = "pass", setup: str = "", batch: str = "4096") -> str:
    return TRAINING.format(action=action, setup=setup, batch=batch)


@pytest.mark.parametrize(("action", "size", "held_by", "made_by_action"), GROWING.values(), ids=GROWING)
def test_growth_is_named(action: str, size: int, held_by: str, made_by_action: bool, tmp_path: Path) -> None:
    prediction = runner(tmp_path)(script(action))
    assert prediction.outlook is not None
    growth = prediction.outlook.growth
    assert growth.bytes_per_step == pytest.approx(size, abs=512)
    assert growth.held_by == held_by and growth.steps == LOOKED_AT == prediction.steps
    line = ACTION_LINE if made_by_action else ACTION_LINE - 5
    assert growth.where is not None and growth.where.endswith(f"train.py:{line}")
    assert not prediction.fits and prediction.out_of_memory is None
    (note,) = notes(prediction, "memory grows")
    assert f"{size / MIB:.1f} MiB a step" in note and f"held by {held_by}" in note
    document = prediction_document(prediction)["growth"]
    assert document["out_of_memory_step"] == prediction.outlook.out_of_memory_step
    assert f"out of memory at {'' if document['exact'] else 'about '}step" in verdict(prediction)


def test_a_hook_that_collects_activations(tmp_path: Path) -> None:
    setup = "model[1].register_forward_hook(lambda module, args, out: kept.append(out.detach()))"
    prediction = runner(tmp_path)(script(setup=setup))
    assert prediction.outlook is not None and prediction.outlook.growth.held_by == "kept"
    assert prediction.outlook.growth.bytes_per_step == HIDDEN


@pytest.mark.parametrize(
    ("action", "tolerance"), [("kept.append(model(x).detach())", 0), ("bank = torch.cat([bank, x])", 6)]
)
def test_the_step_at_which_memory_runs_out(action: str, tolerance: int, tmp_path: Path) -> None:
    """A run to the end is refused where the prediction from a few steps says so."""
    run = runner(tmp_path)
    foreseen = run(script(action), limit_bytes=2 * GIB)
    whole = run(script(action), limit_bytes=2 * GIB, steps=None)
    assert foreseen.outlook is not None and whole.out_of_memory is not None and not whole.fits
    assert foreseen.outlook.exact == (not tolerance)
    assert foreseen.outlook.out_of_memory_step == pytest.approx(whole.out_of_memory.at.step + 1, abs=tolerance)


@pytest.mark.parametrize(
    ("action", "batch"),
    [
        ("pass", "4096"),
        ("pass", "lengths[step]"),
        ("kept.append(loss)", "4096"),  # its graph was freed by the backward pass
        ("kept.append(loss.detach())", "4096"),
        ("latest.append(x)", "4096"),
        ("seen[step] = torch.zeros(1 << 20, device='cuda') if step in (1, 3) else None", "4096"),
        ("average = [p.detach().clone() for p in model.parameters()] if step == 2 else None", "4096"),
        ("previous = x", "4096"),
        ("optimizer.zero_grad(set_to_none=False)", "4096"),
    ],
)
def test_steady_runs_get_no_note(action: str, batch: str, tmp_path: Path) -> None:
    prediction = runner(tmp_path)(script(action, batch=batch))
    assert prediction.outlook is None and prediction.fits and notes(prediction, "memory grows") == []


def test_a_run_that_memory_lasts_for(tmp_path: Path) -> None:
    elements = THRESHOLD_BYTES // 4
    prediction = runner(tmp_path)(script(f"kept.append(torch.zeros({elements}, device='cuda'))"))
    assert prediction.outlook is not None and prediction.outlook.growth.bytes_per_step == THRESHOLD_BYTES
    step = prediction.outlook.out_of_memory_step
    assert step is not None and step > MANY_STEPS and prediction.fits
    assert len(notes(prediction, "memory grows")) == 1, "it fits, and says what it leaves behind"
    smaller = runner(tmp_path)(script(f"kept.append(torch.zeros({elements - 1}, device='cuda'))"))
    assert smaller.outlook is None


def test_a_script_that_ends_by_itself_has_shown_all(tmp_path: Path) -> None:
    text = script("kept.append(model(x).detach())").replace("range(400)", "range(8)")
    assert runner(tmp_path)(text, steps=20).outlook is None


def test_growth_is_saved_with_the_trace(tmp_path: Path) -> None:
    prediction = runner(tmp_path)(script("kept.append(model(x).detach())"))
    assert prediction.trace is not None
    prediction.trace.save(tmp_path / "trace")
    loaded = StepTrace.load(tmp_path / "trace")
    assert loaded.growth == prediction.trace.growth
    assert predict(loaded).outlook == prediction.outlook
