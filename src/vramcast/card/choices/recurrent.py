"""RNNs on CUDA: one cuDNN op with a reserve space instead of one op per time step.

Follows `_cudnn_impl` in aten/src/ATen/native/cudnn/RNN.cpp: the functions below make the call that it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
aten = torch.ops.aten

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t


def cudnn_mode(name: str) -> int:
    """torch.backends.cudnn.rnn.get_cudnn_mode, which a CPU build cannot answer."""
    return MODES[name.lower()]


def functions(machine: Any) -> dict[str, Callable[..., Any]]:
    """The composite functions to replace, by their names in the dispatcher."""
    replacements: dict[str, Callable[..., Any]] = {}
    for name, mode in MODES.items():
        replacements[f"{name}.input"] = _padded(machine, name, mode)
        replacements[f"{name}.data"] = _packed(machine, name, mode)
    return replacements


def _padded(machine: Any, name: str, mode: int) -> Callable[..., Any]:
    def run(
        input: Tensor,
        hx: Any,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if batch_first:
            input = input.transpose(0, 1)
        output, hidden = _call(
            machine, mode, input, [], hx, params, has_biases, num_layers, dropout, train, bidirectional
        )
        return (output.transpose(0, 1) if batch_first else output, *hidden)

    return run


def _packed(machine: Any, name: str, mode: int) -> Callable[..., Any]:
    def run(
        data: Tensor,
        batch_sizes: Tensor,
        hx: Any,
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        output, hidden = _call(
            machine,
            mode,
            data,
            batch_sizes.tolist(),
            hx,
            params,
            has_biases,
            num_layers,
            dropout,
            train,
            bidirectional,
        )
        return (output, *hidden)

    return run


def _call(
    machine: Any,
    mode: int,
    input: Tensor,
    batch_sizes: list[int],
    hx: Any,
    params: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[Tensor, list[Tensor]]:
    lstm = mode == MODES["lstm"]
    h, c = (hx[0], hx[1]) if lstm else (hx, None)
    hidden_size = (c if c is not None else h).size(2)
    proj_size = h.size(2) if lstm and h.size(2) != hidden_size else 0
    weight_buf = _flat_buffer(params)
    dropout_state = machine.cudnn_dropout_state() if train and dropout > 0 else None
    out = aten._cudnn_rnn(
        input,
        params,
        _stride0(has_biases, proj_size),
        weight_buf,
        h,
        c,
        mode,
        hidden_size,
        proj_size,
        num_layers,
        False,
        dropout,
        train,
        bidirectional,
        batch_sizes,
        dropout_state,
    )
    return out[0], [out[1], out[2]] if lstm else [out[1]]


def _stride0(has_biases: bool, proj_size: int) -> int:
    """Weights per layer and direction."""
    return (4 if has_biases else 2) + (1 if proj_size else 0)


def _flat_buffer(params: list[Tensor]) -> Tensor | None:
    """The one buffer all weights live in after flatten_parameters; None when cuDNN must copy them itself."""
    with torch._C.DisableTorchFunction():
        storage = params[0].untyped_storage()
        if any(p.untyped_storage()._cdata != storage._cdata for p in params[1:]):
            return None
        first = params[0].detach()
        return first.as_strided((storage.nbytes() // first.element_size(),), (1,), 0)
