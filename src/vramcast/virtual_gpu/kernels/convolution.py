"""Convolutions: output layout as cuDNN gives it, and its workspace."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu.kernels.registry import Call, kernel


def output_format(*tensors: torch.Tensor) -> torch.memory_format:
    """channels-last as soon as one operand is (cudnn_conv_suggest_memory_format)."""
    for tensor in tensors:
        if tensor.dim() == 4 and _suggests(tensor, torch.channels_last):
            return torch.channels_last
        if tensor.dim() == 5 and _suggests(tensor, torch.channels_last_3d):
            return torch.channels_last_3d
    return torch.contiguous_format


def _suggests(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=memory_format) and not tensor.is_contiguous()


@kernel("aten::convolution", "aten::_convolution", "aten::cudnn_convolution")
def convolution(call: Call) -> Any:
    x, w = call.args[0], call.args[1]
    stride, padding = call.argument("stride"), call.argument("padding")
    dilation, groups = call.argument("dilation"), call.argument("groups")
    transposed = bool(call.argument("transposed", False))
    size = output_size(
        x.size(), w.size(), stride, padding, dilation, transposed, call.argument("output_padding", (0,)), groups
    )
    out = torch.empty(size, dtype=x.dtype, device="meta", memory_format=output_format(x, w))
    call.mode.adopt_tensor(out, call.device)
    call.mode.machine.use_cudnn()
    call.scratch(*call.mode.machine.workspaces.convolution("forward", x, w, out, stride, padding, dilation,
                                                           groups, transposed))
    return out


def output_size(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> list[int]:
    spatial = len(x) - 2
    stride, padding, dilation = _each(stride, spatial), _each(padding, spatial), _each(dilation, spatial)
    output_padding = _each(output_padding, spatial)
    size = [x[0], w[1] * groups if transposed else w[0]]
    for i in range(spatial):
        reach = dilation[i] * (w[2 + i] - 1)
        if transposed:
            size.append((x[2 + i] - 1) * stride[i] - 2 * padding[i] + reach + output_padding[i] + 1)
        else:
            size.append((x[2 + i] + 2 * padding[i] - reach - 1) // stride[i] + 1)
    if min(size) < 0:
        raise RuntimeError(f"convolution: input {list(x)} is too small for a kernel of {list(w)}")
    return size


def _each(value: Any, n: int) -> list[int]:
    if isinstance(value, int):
        return [value] * n
    return list(value) if len(value) == n else list(value) * n


@kernel("aten::convolution_backward")
def convolution_backward(call: Call) -> Any:
    grad, x, w, bias_sizes = call.args[:4]
    stride, padding, dilation = call.argument("stride"), call.argument("padding"), call.argument("dilation")
    transposed, groups = call.argument("transposed"), call.argument("groups")
    mask = call.argument("output_mask")
    machine = call.mode.machine
    machine.use_cudnn()
    grad_x = grad_w = grad_b = None
    if mask[0]:
        grad_x = torch.empty(x.size(), dtype=x.dtype, device="meta", memory_format=output_format(grad, w))
        call.mode.adopt_tensor(grad_x, call.device)
        call.scratch(*machine.workspaces.convolution("backward_data", x, w, grad, stride, padding, dilation,
                                                     groups, transposed))
    if mask[1]:
        grad_w = torch.empty(w.size(), dtype=w.dtype, device="meta", memory_format=output_format(x, grad))
        call.mode.adopt_tensor(grad_w, call.device)
        call.scratch(*machine.workspaces.convolution("backward_weight", x, w, grad, stride, padding, dilation,
                                                     groups, transposed))
    if mask[2]:
        grad_b = call.empty(bias_sizes, grad.dtype)
    return grad_x, grad_w, grad_b
