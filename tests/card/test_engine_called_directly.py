"""Programs that call the autograd engine themselves, as Megatron-LM's pipelines do."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import vramcast
from vramcast.trace import StepTrace

MIB = 1 << 20


def trained(*, directly: bool) -> tuple[StepTrace, int]:
    engine: Any = torch.autograd.Variable
    with vramcast.virtual_gpu("h100") as card:
        model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda()
        for _ in range(2):
            loss = model(torch.randn(64, 1024, device="cuda")).sum()
            if directly:
                engine._execution_engine.run_backward(
                    tensors=(loss,), grad_tensors=(torch.ones_like(loss),), keep_graph=False, create_graph=False,
                    inputs=(), allow_unreachable=True, accumulate_grad=True,
                )  # fmt: skip
            else:
                loss.backward()
        return card.trace(), torch.cuda.max_memory_allocated()


def test_its_thread_has_a_workspace_of_its_own() -> None:
    """cuBLAS's handle, and so the 32 MiB that PyTorch gives it, is one for each thread."""
    (direct, peak), (usual, usual_peak) = trained(directly=True), trained(directly=False)
    assert peak == usual_peak > 64 * MIB
    assert set(direct.phases) == set(usual.phases) >= {"forward", "backward"}
