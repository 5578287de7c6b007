"""cuDNN's RNN: output, final states, and a reserve space that backward reads."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu.kernels.registry import Call, kernel


@kernel("aten::_cudnn_rnn_flatten_weight")
def flatten_weight(call: Call) -> Any:
    """All weights moved into one buffer; each parameter becomes a view of it."""
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
    hidden, proj = call.argument("hidden_size"), call.argument("proj_size")
    layers, batch_sizes = call.argument("num_layers"), call.argument("batch_sizes")
    train = call.argument("train")
    directions = 2 if call.argument("bidirectional") else 1
    out_size = (proj or hidden) * directions
    call.mode.machine.use_cudnn()
    held = [] if x.is_contiguous() else [call.empty(x.size(), x.dtype)]
    batch = batch_sizes[0] if batch_sizes else x.size(1)
    output = call.empty((*x.shape[:-1], out_size), x.dtype)
    weight_buf = call.argument("weight_buf")
    hy = call.empty((layers * directions, batch, proj or hidden), hx.dtype)
    cy = call.empty((layers * directions, batch, hidden), cx.dtype) if cx is not None else call.empty((0,), hx.dtype)
    if weight_buf is None or weight_buf.numel() == 0:
        weight_buf = call.empty((sum(w.numel() for w in weights),), x.dtype)
    steps = len(batch_sizes) if batch_sizes else x.size(0)
    workspace, reserve_bytes = call.mode.machine.workspaces.rnn(
        mode=call.argument("mode"), steps=steps, batch=batch, input_size=x.size(-1), hidden=hidden, proj=proj,
        layers=layers, directions=directions, dropout=call.argument("dropout"), train=train, dtype=x.dtype,
        batch_sizes=batch_sizes,
    )
    reserve = call.empty((reserve_bytes if train else 0,), torch.uint8)
    call.scratch(workspace)
    del held
    return output, hy, cy, reserve, weight_buf


@kernel("aten::_cudnn_rnn_backward")
def rnn_backward(call: Call) -> Any:
    x, weights = call.args[0], call.args[1]
    hx, cx = call.argument("hx"), call.argument("cx")
    mask = call.argument("output_mask")
    batch_sizes = call.argument("batch_sizes")
    hidden, layers = call.argument("hidden_size"), call.argument("num_layers")
    directions = 2 if call.argument("bidirectional") else 1
    batch = batch_sizes[0] if batch_sizes else x.size(1)
    steps = len(batch_sizes) if batch_sizes else x.size(0)
    workspace, _ = call.mode.machine.workspaces.rnn(
        mode=call.argument("mode"), steps=steps, batch=batch, input_size=x.size(-1), hidden=hidden,
        proj=call.argument("proj_size"), layers=layers, directions=directions, dropout=call.argument("dropout"),
        train=True, dtype=x.dtype, batch_sizes=batch_sizes,
    )
    dx = call.empty(x.size(), x.dtype)
    dhx = call.empty(hx.size(), hx.dtype)
    dcx = call.empty(cx.size(), cx.dtype) if cx is not None else call.empty((0,), hx.dtype)
    call.scratch(workspace)
    grads: list[torch.Tensor] = []
    if mask[3]:
        # The weight gradients are views of one buffer as large as the weights.
        buffer = call.empty((sum(w.numel() for w in weights),), weights[0].dtype)
        call.scratch(workspace)
        offset = 0
        for weight in weights:
            grads.append(buffer[offset : offset + weight.numel()].view(weight.size()))
            offset += weight.numel()
    return dx, dhx, dcx, grads


def _contiguous(size: Any) -> list[int]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return strides[::-1]
