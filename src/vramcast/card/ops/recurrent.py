"""cuDNN's RNN: output, final states, and a reserve space that backward reads."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel


@kernel("aten::_cudnn_rnn_flatten_weight")
def flatten_weight(call: Call) -> Any:
    """Move all weights into one buffer; each parameter becomes a view of it."""
    weights = call.args[0]
    buffer = call.empty((sum(w.numel() for w in weights),), weights[0].dtype)
    offset = 0
    for weight in weights:
        torch.ops.aten.set_.source_Storage_storage_offset(
            weight, buffer.untyped_storage(), offset, weight.size(), _contiguous(weight.size())
        )
        offset += weight.numel()
    return buffer


@kernel("aten::_cudnn_rnn")
def rnn(call: Call) -> Any:
    x, weights = call.args[0], call.args[1]
    hx, cx = call.argument("hx"), call.argument("cx")
    hidden, proj, layers = call.argument("hidden_size"), call.argument("proj_size"), call.argument("num_layers")
    directions = 2 if call.argument("bidirectional") else 1
    call.mode.machine.use_cudnn()
    held = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    batch = _batch(call, x)
    output = call.empty((*x.shape[:-1], (proj or hidden) * directions), x.dtype)
    weight_buf = call.argument("weight_buf")
    hy = call.empty((layers * directions, batch, proj or hidden), hx.dtype)
    cy = call.empty((layers * directions, batch, hidden), cx.dtype) if cx is not None else call.empty((0,), hx.dtype)
    if weight_buf is None or weight_buf.numel() == 0:
        weight_buf = call.empty((sum(w.numel() for w in weights),), x.dtype)
    workspace_bytes, reserve_bytes = _sizes(call, x)
    workspace = call.empty((workspace_bytes,), torch.uint8)
    reserve = call.empty((reserve_bytes if call.argument("train") else 0,), torch.uint8)
    del workspace, held
    return output, hy, cy, reserve, weight_buf


@kernel("aten::_cudnn_rnn_backward")
def rnn_backward(call: Call) -> Any:
    """First the gradients of data and states, then those of the weights; each has the workspace for itself."""
    x, weights = call.args[0], call.args[1]
    hx, cx, mask = call.argument("hx"), call.argument("cx"), call.argument("output_mask")
    workspace_bytes, _ = _sizes(call, x, backward=True)
    states = [state for state in (hx, cx) if state is not None]
    # Gradients that autograd did not pass for the final states are zeros made here.
    given = [call.argument("grad_hy"), call.argument("grad_cy")]
    zeros = [call.empty(s.size(), s.dtype) for s, g in zip(states, given, strict=False) if g is None]
    held = _contiguous_copies(call, x, call.argument("grad_output"), call.argument("output"))
    dx = call.empty(x.size(), x.dtype)
    dhx = call.empty(hx.size(), hx.dtype)
    dcx = call.empty(cx.size(), cx.dtype) if cx is not None else call.empty((0,), hx.dtype)
    call.scratch(workspace_bytes)
    del held
    grads: list[torch.Tensor] = []
    if mask[3]:
        held = _contiguous_copies(call, x)
        # The weight gradients are views of one buffer as large as the weights.
        buffer = call.empty((sum(w.numel() for w in weights),), weights[0].dtype)
        call.scratch(workspace_bytes)
        offset = 0
        for weight in weights:
            grads.append(buffer[offset : offset + weight.numel()].view(weight.size()))
            offset += weight.numel()
        del held
    del zeros
    return dx, dhx, dcx, grads


def _contiguous_copies(call: Call, *tensors: torch.Tensor | None) -> list[torch.Tensor]:
    return [call.empty(t.size(), t.dtype) for t in tensors if t is not None and not t.is_contiguous()]


def _batch(call: Call, x: torch.Tensor) -> int:
    batch_sizes = call.argument("batch_sizes")
    return int(batch_sizes[0]) if batch_sizes else x.size(1)


def _sizes(call: Call, x: torch.Tensor, *, backward: bool = False) -> tuple[int, int]:
    """Workspace and reserve."""
    batch_sizes = call.argument("batch_sizes")
    steps = len(batch_sizes) if batch_sizes else x.size(0)
    return call.mode.machine.workspaces.rnn(  # type: ignore[no-any-return]
        mode=call.argument("mode"), steps=steps, batch=_batch(call, x),
        rows=sum(batch_sizes) if batch_sizes else steps * x.size(1), input_size=x.size(-1),
        hidden=call.argument("hidden_size"), proj=call.argument("proj_size"), layers=call.argument("num_layers"),
        directions=2 if call.argument("bidirectional") else 1, dropout=call.argument("dropout"),
        packed=bool(batch_sizes), dtype=x.dtype, backward=backward,
    )  # fmt: skip


def _contiguous(size: Any) -> list[int]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return strides[::-1]
