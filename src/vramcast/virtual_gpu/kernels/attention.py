"""Fused attention: what each backend saves for backward and takes while it runs."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu.kernels.registry import Call, kernel

CUDNN_WORKSPACE_PAD = 256


@kernel("aten::_scaled_dot_product_cudnn_attention")
def cudnn_forward(call: Call) -> Any:
    q, k, v = call.args[:3]
    batch, heads, length = q.size(0), q.size(1), q.size(2)
    dropout = call.argument("dropout_p") or 0.0
    seed, offset = (call.empty((), torch.int64) for _ in range(2)) if dropout else (_host_scalar(), _host_scalar())
    out = call.empty((batch, heads, length, v.size(3)), q.dtype, _like(q, v.size(3)))
    statistics = call.empty(
        (batch, heads, length, 1) if call.argument("compute_log_sumexp") else (0,), torch.float32
    )
    call.mode.machine.use_cudnn()
    call.scratch(CUDNN_WORKSPACE_PAD)
    return out, statistics, None, None, length, k.size(2), seed, offset, None


@kernel("aten::_scaled_dot_product_cudnn_attention_backward")
def cudnn_backward(call: Call) -> Any:
    grad, q, k, v = call.args[:4]
    held = []
    if grad.stride(-1) != 1:
        held.append(call.empty(grad.size(), grad.dtype))
    dq, dk, dv = (call.empty(t.size(), t.dtype, _dense_stride(t)) for t in (q, k, v))
    # dq is summed in fp32, with one fp32 number a row for the softmax; grouped heads get their dk, dv one by one.
    workspace = 4 * q.numel() + 4 * q.numel() // q.size(-1) + CUDNN_WORKSPACE_PAD
    if q.size(1) != k.size(1):
        rows = q.size(0) * q.size(1) * k.size(2)
        workspace += rows * (k.size(3) + v.size(3)) * k.element_size()
    call.scratch(workspace)
    del held
    return dq, dk, dv


@kernel("aten::_scaled_dot_product_efficient_attention")
def efficient_forward(call: Call) -> Any:
    return call.run()


@kernel("aten::_scaled_dot_product_efficient_attention_backward")
def efficient_backward(call: Call) -> Any:
    grad, q, k, v = call.args[:4]
    out = call.run()
    batch, heads, length, width = q.shape
    rows = 4 * batch * heads * length
    # delta = sum(grad * out) in fp32, one number a row; the product is a full-sized temporary.
    delta = call.empty((batch, heads, length), torch.float32) if rows else None
    call.scratch(q.numel() // width * v.size(3) * grad.element_size(), rows)
    call.scratch(efficient_accumulators(q, k, v))
    del delta
    return out


def efficient_accumulators(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> int:
    """fp32 accumulators of the memory-efficient backward kernel (workspace_size in its kernel parameters)."""
    batch, heads, q_length, width = q.shape
    k_length, v_width = k.size(2), v.size(3)
    half = q.dtype in (torch.float16, torch.bfloat16)
    block_i, block_j = 64, 64
    if not half and width <= 64:
        per_head = 4 * (k_length * 0 + q_length * width)
        return batch * heads * (per_head + 256)
    gq = -(-q_length // block_i) * block_i * width if half else q_length * width
    gkv = -(-k_length // block_j) * block_j * (width + v_width) if half else 0
    return 4 * batch * heads * (gq + gkv)


@kernel("aten::_scaled_dot_product_flash_attention")
def flash_forward(call: Call) -> Any:
    return call.run()


@kernel("aten::_scaled_dot_product_flash_attention_backward")
def flash_backward(call: Call) -> Any:
    grad, q, k, v = call.args[:4]
    out = call.run()
    batch, heads, length, width = q.shape
    rows = batch * heads * (-(-length // 128) * 128)
    padded_width = -(-width // 32) * 32
    sizes = [4 * rows, 4 * rows * padded_width]
    if heads != k.size(1):
        grouped = batch * heads * k.size(2)
        sizes += [grouped * width * k.element_size(), grouped * v.size(3) * v.element_size()]
    call.scratch(*sizes)
    return out


@kernel("aten::_safe_softmax")
def safe_softmax(call: Call) -> Any:
    out = call.run()
    rows = out.numel() // max(out.size(call.argument("dim")), 1)
    call.scratch(out.numel(), rows, 4)  # which elements are -inf, which rows wholly so
    return out


def _host_scalar() -> torch.Tensor:
    return torch.zeros((), dtype=torch.int64)


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
