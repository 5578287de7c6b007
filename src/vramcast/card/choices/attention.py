"""Which attention kernel PyTorch picks on a given card, and how it is called.

Follows the checks of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and the calls of
aten/src/ATen/native/transformers/attention.cpp, as they are in the torch that is installed. torch 2.11 was measured;
what other versions do otherwise was read off their sources (base/torch_versions.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.attention

from vramcast.base.torch_versions import (
    ALIGNED_EFFICIENT_ATTENTION,
    BLACKWELL_ATTENTION,
    CUDNN_192_AND_128,
    CUDNN_ATTENTION_DROPOUT_GAP,
    CUDNN_ATTENTION_FIRST,
    CUDNN_ATTENTION_FIRST_IF_NEW,
    CUDNN_DROPOUT_IN_SIXTEENTHS,
    CUDNN_HEADS_MUST_FIT,
    CUDNN_HEADS_OF_256,
    CUDNN_SINGLE_QUERIES,
    CUDNN_WIDE_HEADS,
    ONE_HEAD_FOR_ALL,
    Version,
)
from vramcast.card.device.installed_torch import INSTALLED, cudnn_version

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine

Tensor = torch.Tensor
aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_MOST_CUDNN_HEADS = 65535


def attention_for(machine: Machine) -> Callable[..., Tensor]:
    capability = machine.gpu.compute_capability

    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        backend = choose(
            capability, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, order=_order_in_force()
        )
        mask = _float_mask(attn_mask, query.dtype)
        wants_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        if backend == "math":
            machine.in_math_attention = True
            try:
                return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            finally:
                machine.in_math_attention = False
        if backend == "cudnn":
            return aten._scaled_dot_product_cudnn_attention.default(  # type: ignore[no-any-return]
                query, key, value, mask, wants_grad, dropout_p, is_causal, False, scale=scale
            )[0]
        if backend == "flash":
            head = query.size(-1)
            scale = scale if scale is not None else 1 / math.sqrt(head)
            q, k, v = (_pad_last(t, 8) for t in (query, key, value))
            out = aten._scaled_dot_product_flash_attention.default(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
            return out if q is query else out[..., :head]  # type: ignore[no-any-return]
        if mask is not None:
            mask = _aligned_mask(mask, query, key)
            wants_grad = wants_grad or (torch.is_grad_enabled() and mask.requires_grad)
        return aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
            query, key, value, mask, wants_grad, dropout_p, is_causal, scale=scale
        )[0]

    return scaled_dot_product_attention


def choose(
    capability: tuple[int, int],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    gqa: bool,
    version: Version = INSTALLED,
    cudnn: int | None = None,
    order: Sequence[str] | None = None,
) -> str:
    """ "cudnn", "flash", "efficient" or "math"; `version`: of torch, `cudnn`: of cuDNN if it is not the one here,
    `order`: in which they are tried, where that is not the card's own. Raises as select_sdp_backend does where the
    program allows none that can do it."""
    cuda: Any = torch.backends.cuda
    if not any((cuda.math_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
                cuda.cudnn_sdp_enabled())):  # fmt: skip
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. "
            "This is likely due to turning off both the math kernel and the fused kernels."
        )
    cudnn = cudnn_version() if cudnn is None else cudnn
    checks = {"flash": _can_flash, "efficient": _can_efficient}
    fused = all(t.dim() == 4 for t in (q, k, v)) and not (capability > (9, 0) and version < BLACKWELL_ATTENTION)
    for backend in card_order(capability, version, cudnn) if order is None else order:
        if backend == "math":
            if cuda.math_sdp_enabled():
                return "math"
        elif backend == "overrideable":
            if torch._C._get_overrideable_sdp_enabled():
                raise RuntimeError("Invalid backend")
        elif not fused:
            continue
        elif backend == "cudnn":
            if _can_cudnn(capability, q, k, v, mask, dropout, gqa, version, cudnn):
                return "cudnn"
        elif checks[backend](capability, q, k, v, mask, dropout, causal, gqa, version):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def card_order(capability: tuple[int, int], version: Version = INSTALLED, cudnn: int | None = None) -> list[str]:
    """The order in which PyTorch tries the kernels, unless it is told another one."""
    cudnn = cudnn_version() if cudnn is None else cudnn
    order = ["flash", "efficient", "math", "cudnn"]
    if prefers_cudnn(capability, version, cudnn):
        order = ["cudnn", "flash", "efficient", "math"]
    return order


def prefers_cudnn(cc: tuple[int, int], version: Version, cudnn: int) -> bool:
    """check_prefer_cudnn_attention."""
    if version < CUDNN_ATTENTION_FIRST or cc[0] not in (9, 10):
        return False
    if version < CUDNN_ATTENTION_FIRST_IF_NEW:
        return cudnn >= 90900 and cc[1] == 0
    return cudnn > 91500


_BACKENDS = ["math", "flash", "efficient", "cudnn", "overrideable"]
"""By their number in at::SDPBackend."""


def _order_in_force() -> list[str] | None:
    """None before torch could be told one."""
    if not hasattr(torch._C, "_get_sdp_priority_order"):
        return None
    order = [_BACKENDS[number] for number in torch._C._get_sdp_priority_order()]
    # Where sdpa_kernel cannot switch it off, it stays in the list of kernels, and no card of NVIDIA's has it.
    can_be_switched_off = "overrideable" in torch.nn.attention._backend_names
    return order if can_be_switched_off else [name for name in order if name != "overrideable"]


@contextmanager
def card_order_in_force(capability: tuple[int, int]) -> Iterator[None]:
    """torch.nn.attention.sdpa_kernel(..., set_priority=True) starts from the card's order, and ends with it."""
    if not hasattr(torch._C, "_get_sdp_priority_order"):
        yield
        return
    before = torch._C._get_sdp_priority_order()
    order = [*card_order(capability), "overrideable"]
    torch._C._set_sdp_priority_order([_BACKENDS.index(name) for name in order])
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(before)


def _same_dtype(dtypes: tuple[torch.dtype, ...], *tensors: Tensor) -> bool:
    return all(t.dtype == tensors[0].dtype for t in tensors) and tensors[0].dtype in dtypes


def _heads_fit(q: Tensor, k: Tensor, v: Tensor, gqa: bool, same_kv: bool, version: Version) -> bool:
    if not q.size(0) == k.size(0) == v.size(0):
        return False
    heads, k_heads, v_heads = q.size(1), k.size(1), v.size(1)
    if version >= ONE_HEAD_FOR_ALL and k_heads == v_heads == 1:
        return True
    if gqa:
        if same_kv and k_heads != v_heads:
            return False
        return bool(heads % k_heads == 0 and heads % v_heads == 0)
    return bool(heads == k_heads == v_heads)


def _dense_last(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ignore_single: bool) -> bool:
    if mask is not None and mask.stride(-1) != 1:
        return False
    return all(t.stride(-1) == 1 for t in (q, k, v)) or (ignore_single and q.size(-1) == 1)


def _nonempty(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return min(q.size(2), k.size(2), v.size(2)) > 0


def _can_cudnn(
    cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, gqa: bool,
    version: Version, cudnn: int,
) -> bool:  # fmt: skip
    if not torch.backends.cuda.cudnn_sdp_enabled() or cc < (8, 0) or not _same_dtype(_HALF, q, k, v):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    if mask is not None and (mask.requires_grad or mask.dim() not in (2, 4)):
        return False
    if not _nonempty(q, k, v) or not _dense_last(q, k, v, mask, ignore_single=True):
        return False
    if version >= CUDNN_HEADS_MUST_FIT and not _heads_fit(q, k, v, gqa, False, version):
        return False
    if version >= CUDNN_DROPOUT_IN_SIXTEENTHS and (16 * dropout) % 1:
        return False
    if version >= CUDNN_ATTENTION_DROPOUT_GAP and dropout and 91100 < cudnn < 91400:
        return False
    if version >= CUDNN_HEADS_OF_256 and max(q.size(0), q.size(1)) > _MOST_CUDNN_HEADS:
        return False
    d_qk, d_v = q.size(3), v.size(3)
    trains = any(t.requires_grad for t in (q, k, v))
    if not _head_fits_cudnn(cc, d_qk, d_v, trains, version, cudnn) or d_qk % 8 or d_v % 8:
        return False
    single_query = q.size(2) == 1 and (bool(dropout) or version < CUDNN_SINGLE_QUERIES)
    return k.size(2) != 1 and not single_query


def _head_fits_cudnn(cc: tuple[int, int], d_qk: int, d_v: int, trains: bool, version: Version, cudnn: int) -> bool:
    hopper, blackwell, widest = cc == (9, 0), cc[0] == 10, max(d_qk, d_v)
    if version >= CUDNN_HEADS_OF_256:
        if (hopper or blackwell) and cudnn > 92200:
            backward = widest <= 128 or (d_qk, d_v) in ((192, 128), (256, 256))
            return widest <= 256 and (backward or not trains)
        return widest <= 128 or ((hopper or blackwell) and cudnn >= 91100 and (d_qk, d_v) == (192, 128))
    if hopper and version >= CUDNN_WIDE_HEADS and cudnn >= (90501 if version < CUDNN_ATTENTION_FIRST else 91000):
        return widest <= 256
    if blackwell and version >= CUDNN_192_AND_128 and cudnn >= 91100 and (d_qk, d_v) == (192, 128):
        return True
    return widest <= 128


def _can_flash(
    cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, gqa: bool,
    version: Version,
) -> bool:  # fmt: skip
    if not flash_takes(cc, q, k, v, mask, dropout) or (causal and q.size(-2) != k.size(-2)):
        return False
    return (
        _heads_fit(q, k, v, gqa, True, version)
        and _nonempty(q, k, v)
        and _dense_last(q, k, v, mask, ignore_single=True)
    )


def flash_takes(cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """What is asked of any layout: the card, the dtype, the width of a head."""
    if not torch.backends.cuda.flash_sdp_enabled() or cc < (8, 0) or mask is not None:
        return False
    if not _same_dtype(_HALF, q, k, v):
        return False
    head = q.size(-1)
    if not head == k.size(-1) == v.size(-1) or head > 256:
        return False
    needs_grad = any(t.requires_grad for t in (q, k, v))
    narrow = (8, 6) <= cc <= (8, 9) or cc >= (12, 0)
    return not (needs_grad and narrow and head > 192 and not (dropout == 0 and head > 224))


def _can_efficient(
    cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, gqa: bool,
    version: Version,
) -> bool:  # fmt: skip
    if not efficient_takes(cc, q, k, v):
        return False
    if version >= ALIGNED_EFFICIENT_ATTENTION and cc >= (8, 0):
        nbytes = _efficient_alignment(cc, q.dtype) * q.element_size()
        if any(t.storage_offset() * t.element_size() % nbytes for t in (q, k, v) if t.numel()):
            return False
    if version >= ONE_HEAD_FOR_ALL:
        if not _heads_fit(q, k, v, gqa, True, version):
            return False
    elif not q.size(1) == k.size(1) == v.size(1):  # grouped heads go to the math path (measured, torch 2.11)
        return False
    return _nonempty(q, k, v) and _dense_last(q, k, v, mask, ignore_single=False) and q.size(0) == k.size(0)


def efficient_takes(cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor) -> bool:
    """What is asked of any layout: the card, the dtype, the width of a head."""
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or cc < (5, 0):
        return False
    dtypes = (*_HALF, torch.float32) if cc >= (8, 0) else (torch.float16, torch.float32)
    if not _same_dtype(dtypes, q, k, v):
        return False
    alignment, d_qk, d_v = _efficient_alignment(cc, q.dtype), q.size(-1), v.size(-1)
    return bool(d_qk and d_v and d_qk == k.size(-1) and not d_qk % alignment and not d_v % alignment)


def _efficient_alignment(cc: tuple[int, int], dtype: torch.dtype) -> int:
    alignment = 4 if cc >= (8, 0) else 1
    if cc >= (8, 0) or (cc >= (7, 0) and dtype in _HALF):
        alignment = max(alignment, 8 if dtype in _HALF else 4)
    return alignment


def _float_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask becomes an additive one before the fused kernels see it."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    meta = torch.device("meta")
    zero = aten.scalar_tensor(0.0, dtype=dtype, device=meta)
    return torch.where(mask, zero, aten.scalar_tensor(-math.inf, dtype=dtype, device=meta))


def _aligned_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The memory-efficient kernel wants the mask's last dimension to start on a multiple of 16 elements."""
    last = mask.size(-1)
    if last % 16 and mask.stride(-1) != 0:
        mask = torch.nn.functional.pad(mask, [0, 16 - last % 16])[..., :last]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _pad_last(tensor: Tensor, multiple: int) -> Tensor:
    last = tensor.size(-1)
    return tensor if last % multiple == 0 else torch.nn.functional.pad(tensor, [0, multiple - last % multiple])


def _math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    gqa: bool,
) -> Tensor:
    out: Any = aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout, causal, None, scale=scale, enable_gqa=gqa
    )
    return out[0]  # type: ignore[no-any-return]
