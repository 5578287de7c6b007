"""DeepSpeed: its checks between ranks are skipped, and ZeRO runs where the package is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import vramcast

NAME = "deepspeed.runtime.zero.utils"


def test_checks_between_ranks_are_skipped_on_the_card_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def assert_ints_same_as_other_ranks(ints: list[int]) -> None:
        raise RuntimeError("a disagreement")

    module, user = ModuleType(NAME), ModuleType("a_module_that_took_it")
    for owner in (module, user):
        owner.assert_ints_same_as_other_ranks = assert_ints_same_as_other_ranks  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, owner.__name__, owner)
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with vramcast.virtual_gpu("h100"):
        torch.distributed.init_process_group("nccl")
        user.assert_ints_same_as_other_ranks([1, 2])
        torch.distributed.destroy_process_group()
    with pytest.raises(RuntimeError, match="a disagreement"):
        user.assert_ints_same_as_other_ranks([1, 2])


SCRIPT = """
import sys

import deepspeed
import torch
from torch import nn

WIDTH, LAYERS, stage = 1024, 8, int(sys.argv[-1])
config = {
    "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
    "zero_optimization": {"stage": stage, "reduce_bucket_size": WIDTH * WIDTH},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
}
deepspeed.init_distributed()
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
for _ in range(4):
    loss = engine(torch.randn(4, WIDTH, device=engine.device, dtype=torch.bfloat16)).float().sum()
    engine.backward(loss)
    engine.step()
"""
PARAMETERS = 8 * 1024 * 1024


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_holds_a_share_of_the_state(tmp_path: Path, stage: int) -> None:
    """From stage 1 on, the fp32 copy of the weights and both moments are divided by the number of ranks."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    words = ["run", "--gpu", "h100", "--json", "deepspeed", "--num_gpus", "8", str(script), str(stage)]
    ended = subprocess.run([sys.executable, "-m", "vramcast", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    ranks = json.loads(ended.stdout)["ranks"]
    assert [rank["rank"] for rank in ranks] == [0, 7]
    weights = 2 * PARAMETERS / (8 if stage == 3 else 1)
    for rank in ranks:
        # One card alone would hold weights and gradients of 2 bytes and 12 bytes of state, workspaces left aside.
        assert weights + 12 * PARAMETERS / 8 <= rank["peak_allocated_bytes"] < (2 + 2 + 12) * PARAMETERS
