"""torch.func on the card: grad and vmap take functions apart as on CUDA, and their backward passes run in its order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from vramcast.card.device.context import VirtualGpu


def ops_of(card: VirtualGpu) -> set[str]:
    trace = card.trace()
    return {trace.ops[number] for number in trace.op}


def images(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


@pytest.mark.parametrize("transform", ["grad", "vmap", "vmap of grad"])
def test_batch_norm_is_cudnns(gpu: VirtualGpu, transform: str) -> None:
    norm = nn.BatchNorm2d(8, track_running_stats=False).cuda()
    weights = {name: value.detach() for name, value in norm.named_parameters()}

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(norm, weights, (x,)).square().sum()

    x = images(4, 5, 8, 6, 6)
    if transform == "grad":
        grad(loss)(weights, x[0])
    elif transform == "vmap":
        vmap(loss, (None, 0))(weights, x)
    else:
        vmap(grad(loss), (None, 0))(weights, x)
    assert "aten.cudnn_batch_norm" in ops_of(gpu)
    assert "aten.native_batch_norm" not in ops_of(gpu)


def test_dropout_is_fused(gpu: VirtualGpu) -> None:
    vmap(grad(lambda x: F.dropout(x, 0.5).sum()), randomness="different")(images(4, 8))
    assert "aten.native_dropout" in ops_of(gpu)
    assert "aten.bernoulli_.float" not in ops_of(gpu)


def test_attention_is_a_fused_kernel(gpu: VirtualGpu) -> None:
    def loss(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q).sum()

    vmap(grad(loss))(images(4, 1, 2, 16, 32))
    assert "aten._scaled_dot_product_efficient_attention" in ops_of(gpu)


def test_the_host_is_left_alone(gpu: VirtualGpu) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    scores = vmap(grad(lambda row: F.softmax(row, -1)[..., 0].sum()))(x)
    assert scores.shape == x.shape and scores.isfinite().all()
    normed = vmap(lambda a: F.batch_norm(a, None, None, training=True))(x)
    assert normed.mean(1).abs().max() < 1e-5
    dropped = vmap(lambda a: F.dropout(a, 0.5), randomness="different")(torch.ones(4, 100))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_passes_inside_are_numbered_by_themselves(gpu: VirtualGpu) -> None:
    for _ in range(50):
        warm = torch.empty(4, device="cuda", requires_grad=True) * 2.0
    x = torch.empty(4, device="cuda", requires_grad=True)
    y = x * 2.0
    first = grad(lambda v: v.sin().sum())(x)
    assert first.grad_fn is not None and y.grad_fn is not None
    assert first.grad_fn._sequence_nr() < y.grad_fn._sequence_nr()
    del warm


def test_second_backward_of_a_convolution_adds_out_of_place(gpu: VirtualGpu) -> None:
    x, weight = images(2, 4, 8, 8).requires_grad_(), images(4, 4, 3, 3).requires_grad_()
    out = F.conv2d(x, weight, padding=1)
    dx, dw = torch.autograd.grad(out, (x, weight), torch.ones_like(out, requires_grad=True), create_graph=True)
    (dx.sum() + dw.sum()).backward()
    trace = gpu.trace()
    sizes = [trace.requested_bytes[b] for b, op in enumerate(trace.op) if trace.ops[op] == "aten.add.Tensor"]
    assert 4 * out.numel() in sizes


@pytest.mark.parametrize("transform", ["vmap", "vmap of grad"])
def test_cells_are_fused(gpu: VirtualGpu, transform: str) -> None:
    """The state begins with zeros that are the same for every sample, which ordinary ops could not write into."""
    gru, lstm = nn.GRUCell(8, 16).cuda(), nn.LSTMCell(8, 16).cuda()
    weights = {name: value.detach() for name, value in gru.named_parameters()}

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(1, 16, device="cuda")
        for row in x:
            state = functional_call(gru, weights, (row[None], state))
        return lstm(state[:, :8])[0].square().sum()

    function = loss if transform == "vmap" else grad(loss)
    out: Any = vmap(function, (None, 0))(weights, images(4, 3, 8))
    if transform == "vmap of grad":
        assert out["weight_ih"].shape == (4, 48, 8)
    assert {"aten._thnn_fused_gru_cell", "aten._thnn_fused_lstm_cell"} <= ops_of(gpu)


def test_a_linearized_function_is_recorded_without_what_the_card_does(gpu: VirtualGpu) -> None:
    """make_fx's mode lies below the card's own: it recorded the card's looks at known values, and refused them."""
    layer = nn.Linear(16, 8).cuda()
    out, along = torch.func.linearize(lambda x: layer(x).tanh(), images(64, 16))
    assert along(images(64, 16)).shape == out.shape
