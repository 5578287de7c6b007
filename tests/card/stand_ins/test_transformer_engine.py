"""TransformerEngine's compiled part, with stand-ins for the few classes of its Python part that are needed."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import vramcast
from vramcast.base.errors import CannotPredict

ROWS, WIDTH = 256, 512


class Held(SimpleNamespace):
    """A quantized tensor: what it was made of."""


def quantizer(kind: str, **settings: Any) -> Any:
    usual = {"rowwise_usage": True, "columnwise_usage": True, "internal": True, "dtype": 7, "optimize_for_gemm": True}
    return type(kind, (SimpleNamespace,), {})(**{**usual, **settings})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`import transformer_engine_torch` on an H100, with classes of TransformerEngine that only hold their parts."""
    package, classes = types.ModuleType("transformer_engine"), types.ModuleType("transformer_engine.pytorch.tensor")
    package.__version__ = "2.20.2"  # type: ignore[attr-defined]
    for name in ("Float8Tensor", "MXFP8Tensor", "Float8BlockwiseQTensor"):
        setattr(classes, f"{name}Storage", Held)
        setattr(classes, name, Held)
    pytorch = types.ModuleType("transformer_engine.pytorch")
    pytorch.tensor = classes  # type: ignore[attr-defined]
    for module in (package, pytorch, classes):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with vramcast.virtual_gpu("h100", packages=["transformer_engine_torch"]):
        import transformer_engine_torch  # type: ignore[import-not-found]

        yield transformer_engine_torch


def taken(call: Any) -> tuple[Any, int, int]:
    """What a call returns, the bytes it keeps, and the most it takes at once."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = call()
    return out, torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before


def rows(**settings: Any) -> torch.Tensor:
    return torch.empty(ROWS, WIDTH, dtype=torch.bfloat16, device="cuda", **settings)


@pytest.mark.parametrize(
    ("kind", "settings", "kept"),
    [
        ("Float8Quantizer", {}, 2 * ROWS * WIDTH + 512),
        ("Float8Quantizer", {"columnwise_usage": False}, ROWS * WIDTH + 512),
        ("MXFP8Quantizer", {}, 2 * ROWS * WIDTH + 2 * ROWS * WIDTH // 32),
        ("Float8BlockQuantizer", {"block_scaling_dim": 2}, 2 * ROWS * WIDTH + 2 * 512),
        ("Float8BlockQuantizer", {"block_scaling_dim": 1}, 2 * ROWS * WIDTH + 4 * (4 * ROWS + 2 * WIDTH)),
    ],
)
def test_a_quantized_tensor_holds_numbers_and_scales(engine: Any, kind: str, settings: Any, kept: int) -> None:
    """Both ways on a Hopper card, where a product takes numbers of 8 bits in one layout only."""
    x = rows()
    out, bytes_kept, _ = taken(lambda: engine.quantize(x, quantizer(kind, **settings)))
    assert bytes_kept == kept
    assert out.quantizer.dtype == 7


def test_a_scale_of_this_moment_needs_the_largest_number_first(engine: Any) -> None:
    x = rows()
    _, kept, most = taken(lambda: engine.quantize(x, quantizer("Float8CurrentScalingQuantizer")))
    assert most == kept + 512


def test_a_norm_quantizes_at_once_with_delayed_scales_alone(engine: Any) -> None:
    x, weight = rows(), torch.empty(WIDTH, dtype=torch.bfloat16, device="cuda")
    for kind, beside in (("Float8Quantizer", 0), ("Float8CurrentScalingQuantizer", 2 * ROWS * WIDTH + 2 * 512)):
        chosen = quantizer(kind)
        (_, _, deviation), kept, most = taken(
            lambda q=chosen: engine.rmsnorm_fwd(x, weight, 1e-5, None, q, 6, 0, False)
        )
        assert deviation.shape == (ROWS,)
        assert most - kept == beside


def test_a_product_uses_the_workspace_it_is_given(engine: Any) -> None:
    """PyTorch's own workspace of cuBLAS is not made."""
    weight, x = torch.empty(1024, WIDTH, dtype=torch.bfloat16, device="cuda"), rows()
    workspace = torch.empty(1024, dtype=torch.uint8, device="cuda")
    settings = (None, None, 6, None, 6, False, None, False, workspace, 1024, False, False)
    (out, *_), kept, most = taken(lambda: engine.generic_gemm(weight, True, x, False, *settings))
    assert out.shape == (ROWS, 1024)
    assert kept == most == 2 * ROWS * 1024


def test_a_weight_gradient_is_added_in_place(engine: Any) -> None:
    x, grad = rows(), torch.empty(ROWS, 64, dtype=torch.bfloat16, device="cuda")
    main = torch.empty(64, WIDTH, dtype=torch.float32, device="cuda")
    settings = (main, None, 4, None, 6, False, None, True, main, 0, True, False)
    (out, *_), kept, _ = taken(lambda: engine.generic_gemm(x, False, grad, True, *settings))
    assert out is main
    assert kept == 0


@pytest.mark.parametrize("layout", ["NVTE_SBHD_SBHD_SBHD", "NVTE_BSHD_BSHD_BSHD"])
def test_attention_keeps_the_layout(engine: Any, layout: str) -> None:
    """Output as long as the queries, and a statistic of 4 bytes for each row and head."""
    name = getattr(engine.NVTE_QKV_Layout, layout)
    shape = (128, 2, 8, 64) if "SBHD" in layout else (2, 128, 8, 64)
    q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    out, statistics, _ = engine.fused_attn_fwd(128, 128, True, 1.0, 0.0, True, name, q, k, v)
    assert out.shape == q.shape
    assert out.is_contiguous()
    assert statistics.shape == (2, 8, 128, 1)
    grads, kept, most = taken(lambda: engine.fused_attn_bwd(name, q, k, v, out, out, [statistics]))
    assert [each.shape for each in grads[:3]] == [q.shape] * 3
    assert most - kept == 4 * q.numel() + 4 * 2 * 8 * 128 + 512  # dq in fp32, a number for each row


def test_packed_gradients_share_a_tensor(engine: Any) -> None:
    name = engine.NVTE_QKV_Layout.NVTE_SB3HD
    q = torch.empty(16, 2, 4, 8, dtype=torch.bfloat16, device="cuda")
    dq, dk, dv, *_ = engine.fused_attn_bwd(name, q, q, q, q, q, [])
    assert dq.untyped_storage()._cdata == dk.untyped_storage()._cdata == dv.untyped_storage()._cdata


def test_a_norm_of_tensors_leaves_one_number(engine: Any) -> None:
    noop = torch.zeros(1, dtype=torch.int32, device="cuda")
    total, each = engine.multi_tensor_l2norm(65536, noop, [[torch.empty(10, device="cuda")]], True)
    assert total.shape == (1,)
    assert each.shape == (1,)


def test_what_is_not_known_is_named(engine: Any) -> None:
    with pytest.raises(CannotPredict, match=r"transformer_engine_torch\.ep_dispatch is not in the stand-in"):
        engine.ep_dispatch()
    with pytest.raises(CannotPredict, match="with a NVFP4Quantizer"):
        engine.quantize(rows(), quantizer("NVFP4Quantizer"))
