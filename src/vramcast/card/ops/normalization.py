"""Normalisation layers: statistics in fp32, cuDNN's reserve space, scratch of the backward kernels."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.base.torch_versions import FAST_LAYER_NORM_BACKWARD
from vramcast.card.device.installed_torch import INSTALLED
from vramcast.card.ops.convolution import output_format
from vramcast.card.ops.reductions import reduction_scratch
from vramcast.card.ops.registry import Call, kernel


@kernel("aten::cudnn_batch_norm")
def cudnn_batch_norm(call: Call) -> Any:
    x, weight, training = call.args[0], call.args[1], call.argument("training")
    call.mode.machine.use_cudnn()
    out = torch.empty(x.size(), dtype=x.dtype, device="meta", memory_format=output_format(x))
    call.mode.adopt_tensor(out, call.device)
    if not training:
        empty = call.empty((0,), weight.dtype)
        return out, empty, empty, call.empty((0,), torch.uint8)
    channels = x.size(1)
    mean, variance = call.empty((channels,), weight.dtype), call.empty((channels,), weight.dtype)
    call.scratch(call.mode.machine.workspaces.batch_norm(x, backward=False))
    return out, mean, variance, call.empty((0,), torch.uint8)


@kernel("aten::cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(call: Call) -> Any:
    x, grad, weight = call.args[0], call.args[1], call.args[2]
    layout = output_format(x)
    held = []
    if not grad.is_contiguous(memory_format=layout):
        held.append(call.empty(grad.size(), grad.dtype))
    dx = torch.empty(x.size(), dtype=x.dtype, device="meta", memory_format=layout)
    call.mode.adopt_tensor(dx, call.device)
    dw, db = call.empty(weight.size(), weight.dtype), call.empty(weight.size(), weight.dtype)
    call.scratch(call.mode.machine.workspaces.batch_norm(x, backward=True))
    return dx, dw, db


@kernel("aten::native_layer_norm")
def layer_norm(call: Call) -> Any:
    x = call.args[0]
    held = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    normalized = len(call.argument("normalized_shape"))
    out = call.empty(x.size(), x.dtype)
    statistics = (*x.shape[: x.dim() - normalized], *([1] * normalized))
    accumulate = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    mean, rstd = call.empty(statistics, accumulate), call.empty(statistics, accumulate)
    del held
    return out, mean, rstd


@kernel("aten::native_layer_norm_backward")
def layer_norm_backward(call: Call) -> Any:
    grad, x, _, _, _, weight, bias, mask = call.args
    held = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    dx = call.empty(x.size(), x.dtype) if mask[0] else None
    dw = call.empty(weight.size(), weight.dtype) if mask[1] and weight is not None else None
    db = call.empty(bias.size(), bias.dtype) if mask[2] and bias is not None else None
    if not grad.is_contiguous():
        held.append(call.empty(grad.size(), grad.dtype))
    computed = [gradient for gradient in (dw, db) if gradient is not None]
    if computed:
        _partial_weight_gradients(call, x, computed[0], len(computed))
    del held
    return dx, dw, db


MAX_PARTIAL_BLOCKS = 32768


def _partial_weight_gradients(call: Call, x: torch.Tensor, weight: torch.Tensor, count: int) -> None:
    """Many short rows: the gradients of weight and bias are first summed over blocks of 32 rows.

    LaunchGammaBetaBackwardCUDAKernel in aten/src/ATen/native/cuda/layer_norm_kernel.cu.
    """
    columns = weight.numel()
    rows = x.numel() // max(columns, 1)
    if INSTALLED < FAST_LAYER_NORM_BACKWARD or rows <= 64 * 1024 or columns // 32 >= (call.gpu.sm_count or 0) // 2:
        return
    blocks = min(-(-rows // 32), MAX_PARTIAL_BLOCKS // -(-columns // 32))
    partial = blocks * columns * weight.element_size()
    held = [call.empty((partial,), torch.uint8) for _ in range(count)]
    for _ in held:
        call.scratch(
            weight.numel() * weight.element_size(),
            *reduction_scratch((blocks, columns), (columns, 1), [0], weight.element_size(), 4, call.gpu),
        )
    del held


@kernel("aten::_softmax", "aten::_log_softmax", "aten::cummax", "aten::cummin", "aten::logcumsumexp")
def of_a_dense_input(call: Call) -> Any:
    """Another input is copied for the kernel (SoftMax.cu; scan_dim and scan_dim_with_indices in ScanUtils.cuh)."""
    out = call.run()
    x = call.args[0]
    if not x.is_contiguous():
        call.scratch(x.numel() * x.element_size())
    return out


@kernel("aten::_softmax_backward_data")
def softmax_backward(call: Call) -> Any:
    grad, output = call.args[0], call.args[1]
    out = call.empty(grad.size(), call.argument("input_dtype"))
    nbytes = output.numel() * max(grad.element_size(), output.element_size())
    # grad * output, and a contiguous copy of it where the operands are not
    call.scratch(nbytes, 0 if grad.is_contiguous() else nbytes)
    return out


@kernel("aten::_log_softmax_backward_data")
def log_softmax_backward(call: Call) -> Any:
    out = call.empty(call.args[0].size(), call.argument("input_dtype"))  # contiguous, whatever the gradient is
    call.scratch(*(t.numel() * t.element_size() for t in call.args[:2] if not t.is_contiguous()))
    return out


@kernel("aten::native_group_norm")
def group_norm(call: Call) -> Any:
    out = call.run()
    n, channels = call.argument("N"), call.argument("C")
    if call.argument("weight") is not None or call.argument("bias") is not None:
        call.scratch(4 * n * channels, 4 * n * channels)  # scale and shift for each sample and channel
    return out


@kernel("aten::native_group_norm_backward")
def group_norm_backward(call: Call) -> Any:
    out = call.run()
    n, channels, groups = call.argument("N"), call.argument("C"), call.argument("group")
    scaled = 4 * n * channels if call.argument("weight") is not None else 0
    call.scratch(4 * n * channels, 4 * n * channels, 4 * n * groups, 4 * n * groups, scaled)
    return out


@kernel("aten::_weight_norm_interface_backward")
def weight_norm_backward(call: Call) -> Any:
    """Two dense gradients; up to torch 2.10 meta tensors have no kernel for it."""
    return tuple(call.empty(saved.size(), saved.dtype) for saved in call.args[1:3])


@kernel("aten::cumsum", "aten::cumprod")
def scan(call: Call) -> Any:
    out = call.run()
    if call.args[0].dtype != out.dtype or not call.args[0].is_contiguous():
        call.scratch(out.numel() * out.element_size())  # the input in the result's dtype, dense
    return out
