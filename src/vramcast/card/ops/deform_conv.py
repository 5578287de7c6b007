"""torchvision's operators: deformable convolution (im2col and matrix products) and box selection."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel
from vramcast.card.values import known_values as values

MAX_PARALLEL_IMAGES = 32  # kMaxParallelImgs in torchvision's deform_conv2d_kernel.cu


def _parallel_images(batch: int) -> int:
    return max(n for n in range(1, min(batch, MAX_PARALLEL_IMAGES) + 1) if batch % n == 0)


def _contiguous_copies(call: Call, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [call.empty(t.size(), t.dtype) for t in tensors if not t.is_contiguous()]


def _columns(x: torch.Tensor, w: torch.Tensor, offset: torch.Tensor, images: int) -> int:
    taps = w.size(2) * w.size(3)
    return x.size(1) * taps * images * offset.size(2) * offset.size(3) * x.element_size()


@kernel("torchvision::deform_conv2d")
def deform_conv2d(call: Call) -> Any:
    x, w, offset, mask = call.args[:4]
    held = _contiguous_copies(call, x, w, offset, mask)
    images = _parallel_images(x.size(0))
    size = (x.size(0), w.size(0), offset.size(2), offset.size(3))
    held += [call.empty(size, x.dtype) for _ in range(2)]
    columns = call.empty((_columns(x, w, offset, images),), torch.uint8)
    out = call.empty(size, x.dtype)  # the bias is added out of place
    call.mode.machine.use_cublas(lt=True)
    del columns, held
    return out


@kernel("torchvision::_deform_conv2d_backward")
def deform_conv2d_backward(call: Call) -> Any:
    grad, x, w, offset, mask = call.args[:5]
    held = _contiguous_copies(call, x, w, offset, mask, grad)
    images = _parallel_images(x.size(0))
    dx, doffset, dmask = (call.empty(t.size(), t.dtype) for t in (x, offset, mask))
    slice_bytes = images * grad.numel() // grad.size(0) * grad.element_size() if x.size(0) > 1 else 0
    call.scratch(_columns(x, w, offset, images), slice_bytes)
    dw = call.empty(w.size(), w.dtype)
    regrouped = grad.numel() * grad.element_size() if x.size(0) > 1 else 0
    call.scratch(regrouped, _columns(x, w, offset, images))
    db = call.empty((w.size(0),), w.dtype)
    call.mode.machine.use_cublas()
    del held
    return dx, dw, doffset, dmask, db


@kernel("torchvision::nms")
def nms(call: Call) -> Any:
    """Boxes are sorted by score; each then looks at 64 others at a time (nms_kernel.cu)."""
    n = call.args[0].size(0)
    real = values.real_arguments(call.args, call.kwargs) or call.mode.machine.guesses.arguments(call.args, call.kwargs)
    if real is None or n > _MOST_BOXES:
        kept = None
        call.unknown_read("torchvision.ops.nms", f"all {n} boxes kept")
    else:
        kept = call.func(*[a.float() if isinstance(a, torch.Tensor) else a for a in real[0]])
        call.unknown_read("torchvision.ops.nms", "as many boxes kept as random activations give")
    order = call.empty((n,), torch.int64)
    call.scratch(4 * n, 8 * n, 13 * n)
    held = [call.empty((16 * n,), torch.uint8), call.empty((8 * n * -(-n // 64),), torch.uint8)]
    held.append(call.empty((n,), torch.bool))
    out = call.empty((n if kept is None else kept.numel(),), torch.int64)
    if kept is not None:
        values.learn(out, kept.clone())
    del held, order
    return out


_MOST_BOXES = 20_000
"""Suppressed for real on the CPU; it takes a fraction of a second."""
