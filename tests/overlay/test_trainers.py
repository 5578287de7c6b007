"""The real Trainer, Lightning and accelerate in folders where checkpoints lie already."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.overlay.conftest import kernel_way
from tests.overlay.tree_of_files import fingerprint, make_old

SCRIPT = Path(__file__).parent / "trainers.py"
OLD = (
    "hf/checkpoint-500/model.safetensors", "hf/checkpoint-500/trainer_state.json", "hf/checkpoint-1000/optimizer.pt",
    "pl/last.ckpt", "pl/epoch=0-step=1.ckpt", "acc/checkpoints/checkpoint_0/model.safetensors",
)  # fmt: skip
NEEDED = {"hugging_face": "transformers", "lightning": "lightning", "accelerated": "accelerate"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kernel", "python"])
def test_trainers_leave_the_checkpoints_of_last_week(tmp_path: Path, way: str) -> None:
    if way == "kernel" and not kernel_way():
        pytest.skip("no mount namespaces here")
    if not any(importlib.util.find_spec(name) for name in NEEDED.values()):
        pytest.skip("none of the libraries is here")
    top = tmp_path / "my runs"
    make_old(top, OLD)
    before = fingerprint(tmp_path)
    command = [sys.executable, "-m", "vramcast", "run", "--full", "--gpu", "rtx-4090", "--steps", "1000"]
    environment = {**os.environ, "VRAMCAST_OVERLAY": way, "HOME": str(tmp_path)}
    command += [str(SCRIPT), str(top)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, library in NEEDED.items():
        if importlib.util.find_spec(library):
            assert f"{name}: done" in done.stderr, done.stderr[-3000:]
    assert fingerprint(tmp_path) == before
    said = " ".join(done.stdout.split())
    assert "would have deleted" in said and "checkpoint-1000" in said
