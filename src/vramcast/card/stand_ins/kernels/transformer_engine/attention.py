"""Fused attention of cuDNN (`attention.cpp`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vramcast.card.ops.attention import cudnn_backward_workspace
from vramcast.card.stand_ins.kernels.transformer_engine.names import FusedAttentionBackend, Name
from vramcast.card.stand_ins.ops import NotInStandIn, op

_BATCH_FIRST = {"SBHD": (1, 0, 2, 3), "BSHD": (0, 1, 2, 3), "THD": (0, 1, 2), "BHSD": (0, 2, 1, 3)}
"""For each layout the permutation to (batch, length, heads, width), without a batch where rows of all samples lie one
after the other."""
_WORKSPACE = 16
"""The least that cuDNN's plans ask for, rounded up."""


def get_fused_attn_backend(*settings: Any) -> Any:
    """Whether cuDNN has kernels (`nvte_get_fused_attn_backend` with cuDNN 9.12 or newer). Version 2.20 passes all in
    one object and wants a reason beside the answer."""
    if len(settings) == 1:
        asked = settings[0]
        found = _backend(
            asked.qkv_dtype, asked.head_dim_qk, asked.head_dim_v, asked.is_training, asked.bias_type,
            asked.attn_mask_type,
        )  # fmt: skip
        return found, "" if found >= 0 else "no kernel of cuDNN takes this"
    names = [setting for setting in settings if isinstance(setting, Name)]
    bias = next((name for name in names if "BIAS" in name or name == "NVTE_ALIBI"), "NVTE_NO_BIAS")
    mask = next((name for name in names if "MASK" in name or "CAUSAL" in name), "NVTE_NO_MASK")
    sizes = [setting for setting in settings if type(setting) is int]
    widths = sizes[4:6] if len(sizes) >= 6 else [128, 128]
    dtype = next((setting for setting in settings if isinstance(setting, int) and type(setting) is not int), 6)
    return _backend(dtype, widths[0], widths[1], True, bias, mask)


def _backend(dtype: Any, width: int, values: int, training: bool, bias: str, mask: str) -> FusedAttentionBackend:
    major, minor = torch.cuda.get_device_capability()
    none = FusedAttentionBackend.NVTE_No_Backend
    if int(dtype) in (7, 8):
        fits = width == values == 128 if major < 10 and training else width <= (256 if major < 10 else 128) >= values
        return FusedAttentionBackend.NVTE_FP8 if major >= 9 and bias == "NVTE_NO_BIAS" and fits else none
    if int(dtype) not in (5, 6) or major < 8 or width % 8 or values % 8:
        return none
    wide = max(width, values)
    if wide > 128 and training:
        hopper = (major, minor) == (9, 0) and wide <= 256 and (width == values or (width, values) == (192, 128))
        blackwell = major == 10 and (width, values) in ((192, 128), (256, 256))
        if not hopper and not blackwell:
            return none
    if bias == "NVTE_PRE_SCALE_BIAS" or (bias == "NVTE_ALIBI" and "CAUSAL" not in mask):
        return none
    if bias == "NVTE_POST_SCALE_BIAS" and "PADDING" in mask:
        return none
    return FusedAttentionBackend.NVTE_F16_arbitrary_seqlen


@op(
    "transformer_engine::_fused_attention_forward(Tensor q, Tensor k, Tensor v, Tensor? offsets, bool causal, "
    "Tensor(a!) out) -> ()"
)
def _run_forward(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None, causal: bool, out: Tensor) -> None:
    return None


@op(
    "transformer_engine::_fused_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? offsets, "
    "bool causal, Tensor(a!) dq) -> ()"
)
def _run_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor | None, causal: bool, dq: Tensor
) -> None:
    return None


def _parts(args: tuple[Any, ...], count: int) -> tuple[list[Tensor], str]:
    """The first `count` tensors of floating point with heads, and the layout among the settings."""
    tensors = []
    for each in args:
        if getattr(each, "_fp8_dtype", None) is not None:
            raise NotInStandIn("transformer_engine_torch.fused_attn_fwd in 8 bits", "leave fp8_dpa and fp8_mha out")
        if isinstance(each, Tensor) and each.dim() >= 3 and each.is_floating_point():
            tensors.append(each)
    layouts = [str(each) for each in args if isinstance(each, Name) and ("HD" in each or "3D" in each)]
    return tensors[:count], layouts[0].removeprefix("NVTE_").removeprefix("Paged_KV_") if layouts else "SBHD"


def _causal(args: tuple[Any, ...]) -> bool:
    return any(isinstance(each, Name) and "CAUSAL" in each for each in args)


def _offsets(args: tuple[Any, ...]) -> Tensor | None:
    """Where each sample begins, if rows of all samples lie one after the other."""
    return next((each for each in args if isinstance(each, Tensor) and each.dim() == 1), None)


def _order(layout: str) -> tuple[int, ...]:
    for name, order in _BATCH_FIRST.items():
        if layout.replace("3", "").replace("2", "").startswith(name):
            return order
    raise NotInStandIn(f"transformer_engine_torch.fused_attn_fwd of layout {layout}")


@torch.no_grad()
def fused_attn_fwd(*args: Any) -> list[Tensor]:
    (q, k, v), layout = _parts(args, 3)
    order = _order(layout)
    views = [each.permute(order) for each in (q, k, v)]
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    state = q.new_empty(2, dtype=torch.int64)
    workspace = q.new_empty(_WORKSPACE, dtype=torch.uint8)
    *batch, length, heads, _ = views[0].shape
    statistics = q.new_empty((*batch, heads, length, 1) if batch else (length, heads, 1), dtype=torch.float32)
    torch.ops.transformer_engine._fused_attention_forward(*views, _offsets(args), _causal(args), out)
    del workspace
    bias = [each for each in args if isinstance(each, Tensor) and each.dim() == 4][3:4]
    return [out, statistics, state, *bias]


@torch.no_grad()
def fused_attn_bwd(*args: Any) -> list[Tensor | None]:
    (q, k, v, _, grad), layout = _parts(args, 5)
    order = _order(layout)
    grads = _gradients(q, k, v, layout)
    views = [each.permute(order) for each in (q, k, v)]
    saved = next((each for each in args if isinstance(each, list) and each and isinstance(each[0], Tensor)), [])
    bias = torch.empty_like(saved[2]) if len(saved) > 2 else None
    heads_first = [each.transpose(-3, -2) for each in views]
    if len(order) == 3:
        heads_first = [each.unsqueeze(0) for each in heads_first]
    workspace = q.new_empty(cudnn_backward_workspace(*heads_first), dtype=torch.uint8)
    torch.ops.transformer_engine._fused_attention_backward(grad, *views, _offsets(args), _causal(args), grads[0])
    del workspace
    return [*grads, bias, None]


def _gradients(q: Tensor, k: Tensor, v: Tensor, layout: str) -> list[Tensor]:
    """Packed as the inputs are: three in one, a pair in one, or each on its own."""
    groups = layout.split("_")
    if len(groups) == 1:
        place = -3 if "3HD" in layout else -2
        packed = q.new_empty((*q.shape[: place + 1 or None], 3, *q.shape[place + 1 :]))
        return [packed.select(place, index) for index in range(3)]
    if len(groups) == 2:
        place = -3 if "2HD" in groups[1] else -2
        dq = q.new_empty(q.shape)
        pair = k.new_empty((*k.shape[: place + 1 or None], 2, *k.shape[place + 1 :]))
        return [dq, pair.select(place, 0), pair.select(place, 1)]
    return [each.new_empty(each.shape) for each in (q, k, v)]


def fa_prepare_fwd(packed: Tensor) -> Tensor:
    """[s, b, n, 3 h] -> [3, b, s, n, h]"""
    s, b, n, h = packed.shape
    return packed.new_empty((3, b, s, n, h))


def fa_prepare_bwd(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s, b, n, h = q.shape
    return q.new_empty((b, s, n, 3 * h))
