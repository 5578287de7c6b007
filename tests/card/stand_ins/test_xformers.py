"""xformers where it is not installed: which kernels it would choose, and what they take."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import vramcast
from vramcast.base.errors import CannotPredict
from vramcast.base.torch_versions import FLASH_SEEDS_ON_CARD
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.stand_ins.kernels.xformers_attention import CUTLASS, FLASH, FLASH_3, chosen
from vramcast.card.stand_ins.kernels.xformers_biases import LowerTriangularMask

pytestmark = pytest.mark.skipif(importlib.util.find_spec("xformers") is not None, reason="the real one is installed")

BATCH, LENGTH, HEADS, WIDTH = 2, 1024, 8, 64
TENSOR = BATCH * LENGTH * HEADS * WIDTH * 2
SUMS = BATCH * HEADS * LENGTH * 4


def _inputs(dtype: torch.dtype = torch.bfloat16, length: int = LENGTH) -> list[torch.Tensor]:
    return [torch.randn(BATCH, length, HEADS, WIDTH, device="cuda", dtype=dtype) for _ in range(3)]


@pytest.mark.parametrize(
    ("gpu", "dtype", "dropout", "kind"),
    [
        ("h200", torch.bfloat16, 0.0, FLASH_3),
        ("h200", torch.bfloat16, 0.1, FLASH),
        ("h200", torch.float32, 0.0, CUTLASS),
        ("rtx-4090", torch.bfloat16, 0.0, FLASH),
        ("v100-32gb", torch.float16, 0.0, CUTLASS),
    ],
)
def test_choice_of_kernels(gpu: str, dtype: torch.dtype, dropout: float, kind: str) -> None:
    with vramcast.virtual_gpu(gpu, packages=["xformers"]):
        q, k, v = _inputs(dtype)
        assert chosen(q, k, v, LowerTriangularMask(), dropout) == kind
        assert chosen(q, k, v, torch.zeros(BATCH, HEADS, LENGTH, LENGTH, device="cuda"), dropout) == CUTLASS


def test_flash_3_keeps_output_and_sums_and_gradients_are_stacked() -> None:
    with vramcast.virtual_gpu("h200", packages=["xformers"]):
        from xformers.ops import LowerTriangularMask, memory_efficient_attention, unbind

        qkv = torch.randn(BATCH, LENGTH, 3, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        before = torch.cuda.memory_allocated()
        out = memory_efficient_attention(*unbind(qkv, 2), attn_bias=LowerTriangularMask())
        assert torch.cuda.memory_allocated() - before == TENSOR + SUMS
        grad = torch.ones_like(out)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.grad(out, qkv, grad)
        # Three gradients and the tensor that they are stacked in; the sums are gone by then.
        assert torch.cuda.max_memory_allocated() - before == 6 * TENSOR - SUMS


def test_flash_3_sums_dq_in_fp32() -> None:
    with vramcast.virtual_gpu("h200", packages=["xformers"]):
        from xformers.ops import memory_efficient_attention

        q, k, v = _inputs()
        q.requires_grad_()
        out = memory_efficient_attention(q, k, v)
        grad = torch.ones_like(out)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.grad(out, q, grad)
        # Two sums for each row, dq in fp32, and a semaphore for each block of rows.
        scratch = 2 * SUMS + 2 * TENSOR + 512
        assert torch.cuda.max_memory_allocated() - before == 3 * TENSOR + scratch


def test_sequences_in_one_row() -> None:
    with vramcast.virtual_gpu("rtx-4090", packages=["xformers"]):
        from xformers.ops import fmha

        parts = [torch.randn(2, 100, HEADS, WIDTH, device="cuda", dtype=torch.float16)]
        parts.append(torch.randn(1, 60, HEADS, WIDTH, device="cuda", dtype=torch.float16, requires_grad=True))
        mask, x = fmha.BlockDiagonalMask.from_tensor_list(parts)
        assert mask.q_seqinfo.seqstart_py == [0, 100, 200, 260] and mask.q_seqinfo.max_seqlen == 100
        first, second = mask.split(fmha.memory_efficient_attention(x, x, x, attn_bias=mask))
        assert first.shape == parts[0].shape and second.shape == parts[1].shape
        second.sum().backward()
        assert parts[1].grad is not None


def test_weights_of_swiglu_are_one_parameter() -> None:
    with vramcast.virtual_gpu("h200", packages=["xformers"]):
        from xformers.ops import SwiGLU

        layer = SwiGLU(64, 128).cuda()
        layer(torch.randn(4, 16, 64, device="cuda")).sum().backward()
        assert layer.w12.weight.grad.shape == (256, 64)


def test_a_kernel_that_is_asked_for_is_used() -> None:
    """The card's own choice is flash-attn 3."""
    with vramcast.virtual_gpu("h200", packages=["xformers"]):
        from xformers.ops import MemoryEfficientAttentionFlashAttentionOp, fmha, memory_efficient_attention

        q, k, v = (tensor.requires_grad_() for tensor in _inputs())
        before = torch.cuda.memory_allocated()
        seeds = 512 if INSTALLED >= FLASH_SEEDS_ON_CARD else 0
        for op, kept in (
            (MemoryEfficientAttentionFlashAttentionOp, TENSOR + SUMS + seeds),
            (fmha.MemoryEfficientAttentionCutlassOp, TENSOR + SUMS),
        ):
            out = memory_efficient_attention(q, k, v, op=op)
            assert torch.cuda.memory_allocated() - before == kept
            del out
        with pytest.raises(CannotPredict, match="ask for one kernel"):
            memory_efficient_attention(q, k, v, op=(fmha.cutlass.FwOp, fmha.flash.BwOp))
