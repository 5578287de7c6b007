"""Functions that stand for CUDA extensions: they return what the kernels return, and allocate as much."""

from __future__ import annotations

import pytest
import torch

from lab.published.engine_kernels import apex, attention, flash, gemm, optimizers
from lab.published.engine_kernels.names import Names
from vramcast.card.device.context import virtual_gpu


def test_a_weight_gradient_is_added_in_place() -> None:
    with virtual_gpu("h100") as card:
        input = torch.empty(128, 64, dtype=torch.bfloat16, device="cuda")
        gradient = torch.empty(128, 32, dtype=torch.bfloat16, device="cuda")
        main = torch.empty(32, 64, dtype=torch.float32, device="cuda")
        gemm.product(input, False, gradient, True, None, torch.bfloat16, False)  # cuBLAS has its workspace from now on
        before = card.live_bytes
        out = gemm.product(input, False, gradient, True, main, torch.float32, True)
        assert out is main
        assert card.live_bytes == before


def test_a_product_has_the_shape_of_its_rows() -> None:
    with virtual_gpu("h100"):
        weight = torch.empty(32, 64, dtype=torch.bfloat16, device="cuda")
        input = torch.empty(16, 8, 64, dtype=torch.bfloat16, device="cuda")
        assert gemm.product(weight, True, input, False, None, torch.bfloat16, False).shape == (16, 8, 32)


@pytest.mark.parametrize("layout", ["NVTE_SBHD_SBHD_SBHD", "NVTE_BSHD_BSHD_BSHD"])
def test_attention_keeps_the_layout(layout: str) -> None:
    """Output as long as the queries, and a statistic of 4 bytes for each row and head."""
    name = getattr(Names("NVTE_QKV_Layout"), layout)
    shape = (128, 2, 8, 64) if "SBHD" in layout else (2, 128, 8, 64)
    with virtual_gpu("h100"):
        q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        out, stats, _ = attention.fused_attn_fwd(128, 128, True, 1.0, 0.0, True, name, q, k, v)
        assert out.shape == q.shape
        assert out.is_contiguous()
        assert stats.shape == (2, 8, 128, 1)
        grads = attention.fused_attn_bwd(name, q, k, v, out, out, [stats])
        assert [each.shape for each in grads[:3] if each is not None] == [q.shape] * 3


def test_packed_gradients_share_a_tensor() -> None:
    with virtual_gpu("h100"):
        q = torch.empty(16, 2, 4, 8, dtype=torch.bfloat16, device="cuda")
        dq, dk, dv = attention._gradients(q, q, q, "SBH3D")
        assert dq.untyped_storage()._cdata == dk.untyped_storage()._cdata == dv.untyped_storage()._cdata


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


def test_a_norm_leaves_one_number() -> None:
    with virtual_gpu("h100"):
        noop = torch.zeros(1, dtype=torch.int32, device="cuda")
        total, each = optimizers.multi_tensor_l2norm(65536, noop, [[torch.empty(10, device="cuda")]], True)
        assert total.shape == (1,)
        assert each.shape == (1,)
