"""Single RNN cells: CUDA fuses the gates into one kernel."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.reductions import reduction_scratch
from vramcast.card.ops.registry import Call, kernel


@kernel("aten::_thnn_fused_gru_cell")
def gru_cell(call: Call) -> Any:
    hx = call.argument("hx")
    workspace = call.empty((hx.size(0), 5 * hx.size(1)), hx.dtype)
    return call.empty(hx.size(), hx.dtype), workspace


@kernel("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(call: Call) -> Any:
    grad, has_bias = call.args[0], call.argument("has_bias")
    gates = (grad.size(0), 3 * grad.size(1))
    d_input, d_hidden = call.empty(gates, grad.dtype), call.empty(gates, grad.dtype)
    d_hx = call.empty(grad.size(), grad.dtype)
    biases = [_bias_gradient(call, d) if has_bias else None for d in (d_input, d_hidden)]
    return d_input, d_hidden, d_hx, *biases


@kernel("aten::_thnn_fused_lstm_cell")
def lstm_cell(call: Call) -> Any:
    cx = call.argument("cx")
    workspace = call.empty((cx.size(0), 4 * cx.size(1)), cx.dtype)
    return call.empty(cx.size(), cx.dtype), call.empty(cx.size(), cx.dtype), workspace


@kernel("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(call: Call) -> Any:
    cx, workspace = call.argument("cx"), call.argument("workspace")
    d_gates = call.empty(workspace.size(), workspace.dtype)
    d_cx = call.empty(cx.size(), cx.dtype)
    bias = _bias_gradient(call, d_gates) if call.argument("has_bias") else None
    return d_gates, d_cx, bias


def _bias_gradient(call: Call, gates: torch.Tensor) -> torch.Tensor:
    out = call.empty((gates.size(1),), gates.dtype)
    call.scratch(*reduction_scratch(gates.size(), gates.stride(), [0], gates.element_size(), 4, call.gpu))
    return out


@kernel("aten::_pack_padded_sequence")
def pack_padded_sequence(call: Call) -> Any:
    """The batch sizes come from the lengths, which are on the host and known. Steps of one batch size are made
    contiguous together, and then all are concatenated (PackedSequence.cpp)."""
    x, lengths = call.args[:2]
    counts = lengths.tolist()
    if call.argument("batch_first"):
        x = x.transpose(0, 1)
    ends = sorted(set(counts))
    pieces = [
        x[begin:end, : sum(length > begin for length in counts)] for begin, end in zip([0, *ends], ends, strict=False)
    ]
    copies = [call.empty(piece.size(), piece.dtype) for piece in pieces if not piece.is_contiguous()]
    batch_sizes = torch.tensor([sum(length > t for length in counts) for t in range(max(counts))], device="cpu")
    out = call.empty((int(batch_sizes.sum()), *x.shape[2:]), x.dtype)
    del copies
    return out, batch_sizes
