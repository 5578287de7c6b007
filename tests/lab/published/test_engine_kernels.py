"""Functions that stand for CUDA extensions: they return what the kernels return, and allocate as much."""

from __future__ import annotations

import torch

from lab.published.engine_kernels import apex, flash
from vramcast.card.device.context import virtual_gpu


def test_flash_attention_for_context_parallel() -> None:
    with virtual_gpu("h100"):
        q, k, v = (torch.empty(2, 64, 4, 32, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        out, lse, _, _ = flash.forward(q, k, v, causal=True)
        assert out.shape == q.shape
        assert lse.shape == (2, 4, 64)


def test_rows_of_a_softmax_block() -> None:
    """`scaled_masked_softmax.h`: 128 threads, warps of 32, two rows a warp up to 128 elements."""
    assert apex.get_batch_per_block(1024, 1024, 4, 8) == 4
    assert apex.get_batch_per_block(64, 64, 4, 8) == 8
