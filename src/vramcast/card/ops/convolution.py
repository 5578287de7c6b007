"""Convolutions: who runs them, the copies that bring operands into one memory format, results, cuDNN's workspace.

The order of allocations follows aten/src/ATen/native/Convolution.cpp (_convolution, convolution_backward) and
aten/src/ATen/native/cudnn/ConvShared.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vramcast.card.choices import tf32
from vramcast.card.dispatch.storages import GPU
from vramcast.card.libraries.convolution import convolution_backend, cudnn_problem
from vramcast.card.libraries.problem import ConvolutionProblem
from vramcast.card.ops.layout import suggested_format
from vramcast.card.ops.reductions import reduction_scratch
from vramcast.card.ops.registry import Call, kernel

CONTIGUOUS = torch.contiguous_format


def output_format(*tensors: torch.Tensor) -> torch.memory_format:
    """channels-last as soon as one operand is (cudnn_conv_suggest_memory_format)."""
    for tensor in tensors:
        memory_format = _channels_last(tensor.dim())
        if memory_format is not None and _suggests(tensor, memory_format):
            return memory_format
    return CONTIGUOUS


def _channels_last(dims: int) -> torch.memory_format | None:
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(dims)


def _suggests(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    return suggested_format(tensor) == memory_format


def _copy(call: Call, tensor: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    """`tensor.contiguous(memory_format)`: itself, or a booked copy."""
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return _new(call, tensor.size(), tensor.dtype, memory_format)


def _new(call: Call, size: Any, dtype: torch.dtype, memory_format: torch.memory_format) -> torch.Tensor:
    out = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format)
    call.mode.ledger.book(out.untyped_storage(), call.device, out)
    return out


@dataclass(frozen=True, slots=True)
class _Geometry:
    """The arguments that are not tensors."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    @classmethod
    def of(cls, call: Call, spatial: int) -> _Geometry:
        return cls(
            _each(call.argument("stride"), spatial), _each(call.argument("padding"), spatial),
            _each(call.argument("dilation"), spatial), bool(call.argument("transposed", False)),
            _each(call.argument("output_padding", (0,)), spatial), int(call.argument("groups")),
        )  # fmt: skip

    def backend(self, x: torch.Tensor, w: torch.Tensor, memory_format: torch.memory_format) -> str:
        return convolution_backend(
            x.size(), w.size(), self.stride, self.dilation, self.groups, self.transposed,
            str(x.dtype).removeprefix("torch."), memory_format is not CONTIGUOUS,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a forward pass does with such operands."""

    geometry: _Geometry
    size: list[int]
    memory_format: torch.memory_format
    uses_cudnn: bool
    problems: dict[bool, ConvolutionProblem | None] = field(default_factory=dict)
    """With TF32 or without."""

    @classmethod
    def of(cls, call: Call, x: torch.Tensor, w: torch.Tensor) -> _Plan:
        geometry = _Geometry.of(call, x.dim() - 2)
        size = output_size(x.size(), w.size(), geometry)
        memory_format = output_format(x, w)
        return cls(geometry, size, memory_format, geometry.backend(x, w, memory_format) == "cudnn")


@kernel("aten::convolution", "aten::_convolution", "aten::cudnn_convolution")
def convolution(call: Call) -> Any:
    x, w = call.args[:2]
    if not in_second_backward(call):
        return _convolution(call, x, w, call.once(_Plan.of, call, x, w))
    w = _copy(call, w, CONTIGUOUS)
    return _convolution(call, x, w, _Plan.of(call, x, w))


def in_second_backward(call: Call) -> bool:
    """Whether the op is part of _convolution_double_backward, which makes weights contiguous first."""
    if not call.mode.machine.engine_is_running():
        return False
    node = torch._C._current_autograd_node()
    return node is not None and node.name().startswith("ConvolutionBackwardBackward")


def _convolution(call: Call, x: torch.Tensor, w: torch.Tensor, plan: _Plan) -> torch.Tensor:
    memory_format = plan.memory_format
    if not plan.uses_cudnn:
        held = [_copy(call, x, CONTIGUOUS)]
        out = _new(call, plan.size, x.dtype, CONTIGUOUS)
        held.append(_copy(call, w, CONTIGUOUS))
        return out
    x = _copy(call, x, memory_format)
    out = _new(call, plan.size, x.dtype, memory_format)
    w = _copy(call, w, memory_format)
    call.mode.machine.use_cudnn_for_convolution()
    in_tf32 = tf32.in_cudnn()
    if in_tf32 not in plan.problems:
        plan.problems[in_tf32] = _problem("forward", x, w, out, plan.geometry, memory_format, in_tf32)
    _workspace(call, plan.problems[in_tf32])
    return out


def _problem(
    direction: str, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, geometry: _Geometry,
    memory_format: torch.memory_format, in_tf32: bool,
) -> ConvolutionProblem | None:  # fmt: skip
    return cudnn_problem(
        direction, x.size(), w.size(), y.size(), dtype=str(x.dtype).removeprefix("torch."),
        channels_last=memory_format is not CONTIGUOUS, stride=geometry.stride, padding=geometry.padding,
        dilation=geometry.dilation, groups=geometry.groups, transposed=geometry.transposed,
        tf32=in_tf32,
    )  # fmt: skip


def _workspace(call: Call, problem: ConvolutionProblem | None) -> None:
    if problem is not None and call.device == GPU:
        call.mode.machine.run_convolution(problem, torch.backends.cudnn.benchmark)


def output_size(x: Any, w: Any, geometry: _Geometry) -> list[int]:
    size = [x[0], w[1] * geometry.groups if geometry.transposed else w[0]]
    for i in range(len(x) - 2):
        stride, padding = geometry.stride[i], geometry.padding[i]
        reach = geometry.dilation[i] * (w[2 + i] - 1)
        if geometry.transposed:
            size.append((x[2 + i] - 1) * stride - 2 * padding + reach + geometry.output_padding[i] + 1)
        else:
            size.append((x[2 + i] + 2 * padding - reach - 1) // stride + 1)
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
    geometry = _Geometry.of(call, x.dim() - 2)
    mask = call.argument("output_mask")
    if x.dim() == 3:
        x = _copy(call, x, CONTIGUOUS)  # lives until the bias is done
    memory_format = output_format(x, w)
    backend = geometry.backend(x, w, memory_format)
    if backend == "cudnn":
        grad_x, grad_w = _cudnn_backward(call, grad, x, w, geometry, mask, memory_format)
    else:
        grad_x, grad_w = _depthwise_backward(call, grad, x, w, mask, backend)
    grad_b = None
    if mask[2]:
        grad_b = call.empty(bias_sizes, grad.dtype)
        others = [dim for dim in range(grad.dim()) if dim != 1]
        call.scratch(*reduction_scratch(grad.size(), grad.stride(), others, grad.element_size(),
                                        max(4, grad.element_size()), call.gpu))  # fmt: skip
    return grad_x, grad_w, grad_b


def _cudnn_backward(
    call: Call, grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, geometry: _Geometry, mask: Any,
    memory_format: torch.memory_format,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    call.mode.machine.use_cudnn_for_convolution()
    grad_x = grad_w = None
    if mask[1]:
        x = _copy(call, x, memory_format)
    # `grad.to(x's format)` copies only a tensor of the other format, not one that is merely strided. One dimension is
    # two to cuDNN: a transposed gradient then looks channels-last.
    wanted = output_format(x)
    if output_format(grad if grad.dim() > 3 else grad.unsqueeze(2)) is not wanted:
        grad = _copy(call, grad, wanted)
    if mask[0]:
        layout = output_format(grad, w)
        grad_x = _new(call, x.size(), x.dtype, layout)
        held = [_copy(call, w, layout), _copy(call, grad, layout)]
        _workspace(call, _problem("backward_data", x, w, grad, geometry, layout, tf32.in_cudnn()))
        del held
    if mask[1]:
        layout = output_format(x, grad)
        held = [_copy(call, grad, layout), _copy(call, x, layout)]
        grad_w = _new(call, w.size(), w.dtype, layout)
        _workspace(call, _problem("backward_weight", x, w, grad, geometry, layout, tf32.in_cudnn()))
        del held
    return grad_x, grad_w


def _depthwise_backward(
    call: Call, grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mask: Any, backend: str
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    held = [_copy(call, tensor, CONTIGUOUS) for tensor in (grad, x, w)]
    wanted = {"x": mask[0], "w": mask[1]}
    made: dict[str, torch.Tensor] = {}
    for name in ("w", "x") if backend == "depthwise2d" else ("x", "w"):
        if wanted[name]:
            like = x if name == "x" else w
            made[name] = _new(call, like.size(), like.dtype, CONTIGUOUS)
    del held
    return made.get("x"), made.get("w")
