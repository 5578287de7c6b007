"""Fused attention: what each backend saves for backward and takes while it runs."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.base.torch_versions import (
    FLASH_ROUNDS_TO_64,
    FLASH_ROUNDS_TO_256,
    FLASH_SEEDS_ON_CARD,
    FLASH_SUMS_WITHOUT_PADDING,
    Version,
)
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.ops.registry import Call, kernel

CUDNN_WORKSPACE_PAD = 256


@kernel("aten::_scaled_dot_product_cudnn_attention")
def cudnn_forward(call: Call) -> Any:
    q, k, v = call.args[:3]
    batch, heads, length = q.size(0), q.size(1), q.size(2)
    seed, offset = (call.empty((), torch.int64) for _ in range(2))
    out = call.empty((batch, heads, length, v.size(3)), q.dtype, _like(q, v.size(3)))
    statistics = call.empty((batch, heads, length, 1) if call.argument("compute_log_sumexp") else (0,), torch.float32)
    call.mode.machine.use_cudnn()
    call.scratch(CUDNN_WORKSPACE_PAD)
    return out, statistics, None, None, length, k.size(2), seed, offset, None


@kernel("aten::_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(call: Call) -> Any:
    grad, q, k, v = call.args[:4]
    dq, dk, dv = (call.empty(t.size(), t.dtype, _dense_stride(t)) for t in (q, k, v))
    held = [] if grad.stride(-1) == 1 else [call.empty(grad.size(), grad.dtype)]
    call.scratch(cudnn_backward_workspace(q, k, v))
    del held
    return dq, dk, dv


def cudnn_backward_workspace(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> int:
    """dq is summed in fp32, with one fp32 number a row for the softmax; grouped heads get their dk, dv one by one.
    Dimensions in the order batch, head, position, width."""
    workspace = 4 * q.numel() + 4 * q.numel() // q.size(-1) + CUDNN_WORKSPACE_PAD
    if q.size(1) != k.size(1):
        rows = q.size(0) * q.size(1) * k.size(2)
        workspace += rows * (k.size(3) + v.size(3)) * k.element_size()
    return workspace


_HALF = (torch.float16, torch.bfloat16)


@kernel("aten::_scaled_dot_product_efficient_attention")
def efficient_forward(call: Call) -> Any:
    q, _, v = (t.transpose(1, 2) for t in call.args[:3])
    seeds = _efficient_seeds(call)
    out, statistics = _efficient_outputs(call, q, v, q.size(0), q.size(1))
    return out.transpose(1, 2), statistics, *seeds


@kernel("aten::_efficient_attention_forward")
def efficient_varied_lengths_forward(call: Call) -> Any:
    """Rows of all samples one after the other, as one sample, where offsets are given."""
    q, k, v = call.args[:3]
    offsets = call.argument("cu_seqlens_q")
    samples, queries, keys = q.size(0), q.size(1), k.size(1)
    if offsets is not None:
        samples, queries, keys = offsets.numel() - 1, call.argument("max_seqlen_q"), call.argument("max_seqlen_k")
    seeds = _efficient_seeds(call)
    out, statistics = _efficient_outputs(call, q, v, samples, queries)
    return out, statistics, *seeds, queries, keys


def _efficient_seeds(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The random state lies on the host; a CUDA graph that is recorded keeps it on the card (attention.cu)."""
    if call.mode.machine.graphs.is_capturing:
        return call.empty((), torch.int64), call.empty((), torch.int64)
    return _host_scalar(), _host_scalar()


def _efficient_outputs(
    call: Call, q: torch.Tensor, v: torch.Tensor, samples: int, queries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and a sum for each row; dimensions in the order batch, position, head, width."""
    out = call.empty((*q.shape[:3], v.size(3)), q.dtype)
    rows = -(-queries // 32) * 32 if call.argument("compute_log_sumexp") else 0
    statistics = call.empty((samples, q.size(2), rows), torch.float32)
    if q.dtype in _HALF and v.size(3) > 128:
        call.scratch(4 * out.numel())  # too wide for registers: the output is summed in fp32
    return out, statistics


@kernel("aten::_scaled_dot_product_efficient_attention_backward")
def efficient_backward(call: Call) -> Any:
    grad, q, k, v = (t.transpose(1, 2) for t in call.args[:4])
    bias = call.argument("attn_bias") if call.argument("grad_input_mask")[3] else None
    *gradients, dbias = _efficient_gradients(call, (grad, q, k, v), bias, q.size(0), q.size(1), k.size(1))
    return *(t.transpose(1, 2) for t in gradients if t is not None), dbias


@kernel("aten::_efficient_attention_backward")
def efficient_varied_lengths_backward(call: Call) -> Any:
    grad, q, k, v = call.args[:4]
    bias = call.argument("bias") if call.argument("bias_requires_grad") else None
    offsets = call.argument("cu_seqlens_q")
    if offsets is None:
        return _efficient_gradients(call, (grad, q, k, v), bias, q.size(0), q.size(1), k.size(1))
    _note_varied_lengths(call)
    longest = call.argument("max_seqlen_q"), call.argument("max_seqlen_k")
    return _efficient_gradients(call, (grad, q, k, v), bias, offsets.numel() - 1, *longest)


def _efficient_gradients(
    call: Call, inputs: tuple[torch.Tensor, ...], bias: torch.Tensor | None, samples: int, queries: int, keys: int
) -> tuple[torch.Tensor | None, ...]:
    """Dimensions in the order batch, position, head, width. `bias`: where it gets a gradient."""
    grad, q, k, v = inputs
    dense = None if grad.is_contiguous() else call.empty(grad.size(), grad.dtype)
    dq, dk, dv = (call.empty(t.size(), t.dtype) for t in (q, k, v))
    dbias = None
    if bias is not None:
        last = bias.size(-1)
        aligned = -(-last // 16) * 16
        dbias = call.empty((*bias.shape[:-1], aligned), bias.dtype)[..., :last]
    rows = q.numel() // q.size(3)
    if q.dtype in _HALF:  # the kernel works out delta = sum(grad * out) itself
        delta = call.empty((rows,), torch.float32)
    else:
        product = call.empty((rows * v.size(3),), torch.float32)
        total = call.empty((rows,), torch.float32)
        delta = call.empty((rows,), torch.float32)
        del total, product
    nbytes = efficient_accumulators(samples * q.size(2), queries, keys, q.size(3), v.size(3), q.dtype)
    accumulators = call.empty((nbytes,), torch.uint8)
    del delta, accumulators, dense
    return dq, dk, dv, dbias


def efficient_accumulators(heads: int, queries: int, keys: int, d_qk: int, d_v: int, dtype: torch.dtype) -> int:
    """fp32 accumulators of the CUTLASS backward kernel: workspace_size in mem_eff_attention/kernel_backward.h. `heads`:
    of all samples, each with room for `queries` rows, the most that one has.

    dq is summed in tiles, each with a 16-byte lock: 64 x 64 up to 64 columns; above, 128 rows and 64 columns, 128 in
    half precision up to 128. Half precision wider than 128 sums dk and dv in fp32 too, in blocks of 64 keys.
    """
    width, half = max(d_qk, d_v), dtype in _HALF
    block = 64 if width <= 64 else 128
    columns = 128 if half and 64 < width <= 128 else 64
    total = -(-queries // block) * -(-d_qk // columns) * (4 * block * columns + 16)
    if half and width > 128:
        total += 4 * 64 * _key_splits(heads, keys) * (-(-d_qk // 128) * 128 + -(-d_v // 128) * 128)
    return heads * total


def _key_splits(heads: int, keys: int) -> int:
    """How many blocks of keys are worked on at a time where each needs accumulators (attention_backward.cu)."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    if deterministic and not torch.is_deterministic_algorithms_warn_only_enabled():
        return 1
    if heads >= 256 and keys <= 2 * 64:
        return 1
    return max(1, min(-(-keys // 64), 200 // heads))


def key_splits(heads_of_all: int, queries: int, keys: int, width: int, sms: int) -> int:
    """Into how many parts the keys are split where heads and queries alone do not fill the card (num_splits_heuristic,
    which set_params_splitkv calls)."""
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    key_blocks, work, places = -(-keys // block), heads_of_all * -(-queries // 64), 2 * sms
    if work >= 0.8 * places:
        return 1
    efficiency: dict[int, float] = {}
    for number in range(1, min(128, places, key_blocks) + 1):
        if number == 1 or -(-key_blocks // number) != -(-key_blocks // (number - 1)):
            waves = work * number / places
            efficiency[number] = waves / -(-work * number // places)
    best = max(efficiency.values())
    return next(number for number, value in efficiency.items() if value >= 0.85 * best)


def _split_sums(call: Call, batch: int, heads: int, queries: int, keys: int, width: int) -> None:
    """Each part has its own results in fp32 until they are put together (set_params_splitkv in flash_api.cpp)."""
    if call.argument("dropout_p"):
        return
    parts = key_splits(batch * heads, queries, keys, width, call.gpu.sm_count or 1)
    if parts > 1:
        rows = 4 * parts * batch * heads * queries
        call.scratch(rows, rows * flash_padded_width(width))


@kernel("aten::_scaled_dot_product_flash_attention")
def flash_forward(call: Call) -> Any:
    (batch, heads, queries, width), keys = call.args[0].shape, call.args[1].size(2)
    results = _with_seeds(call, 6)
    _split_sums(call, batch, heads, queries, keys, width)
    return results


@kernel("aten::_flash_attention_forward")
def flash_varied_lengths_forward(call: Call) -> Any:
    results = _with_seeds(call, 2)
    if call.argument("cum_seq_q") is None:
        (batch, queries, heads, width), keys = call.args[0].shape, call.args[1].size(1)
        _split_sums(call, batch, heads, queries, keys, width)
    return results


def _with_seeds(call: Call, place: int) -> Any:
    """`place`: of the first of two random seeds among the results."""
    if INSTALLED >= FLASH_SEEDS_ON_CARD:
        return call.run()
    out = list(call.mode.calls.run(call.func, call.args, call.kwargs, call.known))
    out[place : place + 2] = _host_scalar(), _host_scalar()
    call.mode.adopt(out, call.device)
    return tuple(out)


@kernel("aten::_scaled_dot_product_flash_attention_backward")
def flash_backward(call: Call) -> Any:
    q, k, v = call.args[1:4]
    # The kernel wants the gradient and the output dense in the order batch, position, head.
    mixed = [t for t in (call.args[0], call.argument("out")) if not t.transpose(1, 2).is_contiguous()]
    held = [call.empty(t.size(), t.dtype) for t in mixed]
    out = call.run()
    batch, heads, length, width = q.shape
    rows = batch * heads * (-(-length // 128) * 128)
    sizes = [4 * rows, 4 * rows * flash_padded_width(width) * _sums_of_dq(call, batch * heads)]
    if heads != k.size(1):
        grouped = batch * heads * k.size(2)
        sizes += [grouped * width * k.element_size(), grouped * v.size(3) * v.element_size()]
    call.scratch(*sizes)
    del held
    return out


@kernel("aten::_flash_attention_backward")
def flash_varied_lengths_backward(call: Call) -> Any:
    """mha_varlen_bwd of flash_api.cpp where offsets are given: rows of all samples one after the other, each sample
    with room for a tile of 128 more."""
    q, k, v = call.args[1:4]
    offsets = call.argument("cum_seq_q")
    held = [call.empty(t.size(), t.dtype) for t in (call.args[0], call.argument("out")) if not t.is_contiguous()]
    out = call.run()
    if offsets is None:
        batch, length, heads, width = q.shape
        rows = sums = batch * (-(-length // 128) * 128)
    else:
        (total, heads, width), batch = q.shape, offsets.numel() - 1
        rows = sums = total + 128 * batch
        if INSTALLED < FLASH_SUMS_WITHOUT_PADDING:
            sums = batch * (-(-call.argument("max_q") // 128) * 128)
        _note_varied_lengths(call)
    sizes = [4 * sums * heads, 4 * rows * heads * flash_padded_width(width) * _sums_of_dq(call, batch * heads)]
    if heads != k.size(-2):
        grouped = heads * k.numel() // (k.size(-1) * k.size(-2))
        sizes += [grouped * width * k.element_size(), grouped * v.size(-1) * v.element_size()]
    call.scratch(*sizes)
    del held
    return out


def _sums_of_dq(call: Call, heads: int) -> int:
    """How many sums of dq the blocks of one head add to: where the order of additions is fixed, one for each block
    (nsplits in mha_bwd of flash_api.cpp). `heads`: of all samples."""
    return -(-(call.gpu.sm_count or 1) // heads) if torch.are_deterministic_algorithms_enabled() else 1


def _note_varied_lengths(call: Call) -> None:
    call.mode.machine.note(
        "attention",
        "what its backward pass takes for sequences of varied lengths was read off PyTorch's source and not measured",
    )


def flash_padded_width(width: int, version: Version = INSTALLED) -> int:
    """head_size_rounded in mha_bwd of flash_api.cpp: how wide the rows are that dq is summed in."""
    padded = -(-width // 32) * 32
    if version >= FLASH_ROUNDS_TO_64:
        return padded if width <= 128 else -(-width // 64) * 64
    return 256 if version >= FLASH_ROUNDS_TO_256 and padded >= 224 else padded


@kernel("aten::_safe_softmax")
def safe_softmax(call: Call) -> Any:
    out = call.run()
    rows = out.numel() // max(out.size(call.argument("dim")), 1)
    call.scratch(out.numel(), rows, 4)  # which elements are -inf, which rows wholly so
    return out


def _host_scalar() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64, device="cpu")


def _like(q: torch.Tensor, last: int) -> list[int]:
    """The output keeps the query's order of dimensions."""
    order = sorted(range(4), key=lambda d: q.stride(d))
    strides, step = [0] * 4, 1
    for d in order:
        strides[d] = step
        step *= last if d == 3 else q.size(d)
    return strides


def _dense_stride(t: torch.Tensor) -> list[int]:
    """empty_like: dense in the tensor's own order of dimensions."""
    return list(torch.empty_like(t).stride())
