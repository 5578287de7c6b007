"""Which attention kernel PyTorch picks on a given card, and how it is called.

Follows the checks of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and the calls of
aten/src/ATen/native/transformers/attention.cpp, as they are in the torch that is installed. torch 2.11 was measured;
what changed since was read off sources, and for 2.14 off the messages in its libraries:

2.12  cuDNN is passed over where the dropout probability is not a multiple of 1/16
2.14  one head of keys and values serves all queries in each fused kernel; the memory-efficient kernel takes grouped
      heads, and inputs that start at a multiple of 16 bytes only; cuDNN takes heads of 256, no more than 65535 of them
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.virtual_gpu.machine import Machine

Tensor = torch.Tensor
aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_INSTALLED = tuple(int(part) for part in torch.__version__.split(".")[:2])
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
            return aten._scaled_dot_product_cudnn_attention(  # type: ignore[no-any-return]
                query, key, value, mask, wants_grad, dropout_p, is_causal, False, scale=scale
            )[0]
        if backend == "flash":
            head = query.size(-1)
            scale = scale if scale is not None else 1 / math.sqrt(head)
            q, k, v = (_pad_last(t, 8) for t in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
            return out if q is query else out[..., :head]  # type: ignore[no-any-return]
        if mask is not None:
            mask = _aligned_mask(mask, query, key)
            wants_grad = wants_grad or (torch.is_grad_enabled() and mask.requires_grad)
        return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
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
    version: tuple[int, ...] = _INSTALLED,
    order: Sequence[str] | None = None,
) -> str:
    """ "cudnn", "flash", "efficient" or "math"; `version`: of torch, `order`: in which they are tried, where that is
    not the card's own. Raises as select_sdp_backend does where the program allows none that can do it."""
    cuda: Any = torch.backends.cuda
    if not any((cuda.math_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(),
                cuda.cudnn_sdp_enabled())):  # fmt: skip
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. "
            "This is likely due to turning off both the math kernel and the fused kernels."
        )
    checks = {"cudnn": _can_cudnn, "flash": _can_flash, "efficient": _can_efficient}
    fused = all(t.dim() == 4 for t in (q, k, v))
    for backend in card_order(capability) if order is None else order:
        if backend == "math":
            if cuda.math_sdp_enabled():
                return "math"
        elif backend == "overrideable":
            if torch._C._get_overrideable_sdp_enabled():
                raise RuntimeError("Invalid backend")
        elif fused and checks[backend](capability, q, k, v, mask, dropout, causal, gqa, version):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def card_order(capability: tuple[int, int]) -> list[str]:
    """In which order PyTorch tries the kernels unless it is told another one (check_prefer_cudnn_attention)."""
    if capability[0] in (9, 10):
        return ["cudnn", "flash", "efficient", "math", "overrideable"]
    return ["flash", "efficient", "math", "cudnn", "overrideable"]


_BACKENDS = ["math", "flash", "efficient", "cudnn", "overrideable"]
"""By their number in at::SDPBackend."""


def _order_in_force() -> list[str]:
    return [_BACKENDS[number] for number in torch._C._get_sdp_priority_order()]


@contextmanager
def card_order_in_force(capability: tuple[int, int]) -> Iterator[None]:
    """torch.nn.attention.sdpa_kernel(..., set_priority=True) starts from the card's order, and ends with it."""
    before = torch._C._get_sdp_priority_order()
    torch._C._set_sdp_priority_order([_BACKENDS.index(name) for name in card_order(capability)])
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(before)


def _same_dtype(dtypes: tuple[torch.dtype, ...], *tensors: Tensor) -> bool:
    return all(t.dtype == tensors[0].dtype for t in tensors) and tensors[0].dtype in dtypes


def _heads_fit(q: Tensor, k: Tensor, v: Tensor, gqa: bool, same_kv: bool, version: tuple[int, ...]) -> bool:
    if not q.size(0) == k.size(0) == v.size(0):
        return False
    heads, k_heads, v_heads = q.size(1), k.size(1), v.size(1)
    if version >= (2, 14) and k_heads == v_heads == 1:
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
    cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, gqa: bool,
    version: tuple[int, ...],
) -> bool:  # fmt: skip
    if not torch.backends.cuda.cudnn_sdp_enabled() or cc < (8, 0) or not _same_dtype(_HALF, q, k, v):
        return False
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        return False
    if mask is not None and (mask.requires_grad or mask.dim() not in (2, 4)):
        return False
    if not _nonempty(q, k, v) or not _dense_last(q, k, v, mask, ignore_single=True):
        return False
    if not _heads_fit(q, k, v, gqa, False, version):
        return False
    if version >= (2, 12) and (16 * dropout) % 1:
        return False
    if version >= (2, 14) and max(q.size(0), q.size(1)) > _MOST_CUDNN_HEADS:
        return False
    d_qk, d_v = q.size(3), v.size(3)
    if not _head_fits_cudnn(cc, d_qk, d_v, any(t.requires_grad for t in (q, k, v)), version) or d_qk % 8 or d_v % 8:
        return False
    return k.size(2) != 1 and not (dropout and q.size(2) == 1)


def _head_fits_cudnn(cc: tuple[int, int], d_qk: int, d_v: int, trains: bool, version: tuple[int, ...]) -> bool:
    if version >= (2, 14) and (cc == (9, 0) or cc[0] == 10):
        backward = max(d_qk, d_v) <= 128 or (d_qk, d_v) in ((192, 128), (256, 256))
        return max(d_qk, d_v) <= 256 and (backward or not trains)
    limit = 256 if cc == (9, 0) else 192 if cc[0] == 10 and (d_qk, d_v) == (192, 128) else 128
    return max(d_qk, d_v) <= limit


def _can_flash(
    cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, gqa: bool,
    version: tuple[int, ...],
) -> bool:  # fmt: skip
    if not torch.backends.cuda.flash_sdp_enabled() or cc < (8, 0) or mask is not None:
        return False
    if not _same_dtype(_HALF, q, k, v):
        return False
    head = q.size(-1)
    if not head == k.size(-1) == v.size(-1) or head > 256:
        return False
    needs_grad = any(t.requires_grad for t in (q, k, v))
    if needs_grad and ((8, 6) <= cc <= (8, 9) or cc >= (12, 0)) and head > 192 and not (dropout == 0 and head > 224):
        return False
    if causal and q.size(-2) != k.size(-2):
        return False
    return (
        _heads_fit(q, k, v, gqa, True, version)
        and _nonempty(q, k, v)
        and _dense_last(q, k, v, mask, ignore_single=True)
    )


def _can_efficient(
    cc: tuple[int, int], q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, gqa: bool,
    version: tuple[int, ...],
) -> bool:  # fmt: skip
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or cc < (5, 0):
        return False
    dtypes = (*_HALF, torch.float32) if cc >= (8, 0) else (torch.float16, torch.float32)
    if not _same_dtype(dtypes, q, k, v):
        return False
    half = q.dtype in _HALF
    alignment = 4 if cc >= (8, 0) else 1
    if cc >= (8, 0) or (cc >= (7, 0) and half):
        alignment = max(alignment, 8 if half else 4)
    d_qk, d_v = q.size(-1), v.size(-1)
    if d_qk != k.size(-1) or d_qk % alignment or d_v % alignment or not d_qk or not d_v:
        return False
    if version >= (2, 14):
        if not _heads_fit(q, k, v, gqa, True, version):
            return False
        nbytes = alignment * q.element_size()
        if cc >= (8, 0) and any(t.storage_offset() * t.element_size() % nbytes for t in (q, k, v) if t.numel()):
            return False
    elif not q.size(1) == k.size(1) == v.size(1):  # grouped heads go to the math path (measured, torch 2.11)
        return False
    return _nonempty(q, k, v) and _dense_last(q, k, v, mask, ignore_single=False) and q.size(0) == k.size(0)


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
