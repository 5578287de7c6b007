"""Passes with create_graph=True run in a thread of the engine's own, as they do on CUDA."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

import vramcast
from vramcast.card.device.context import VirtualGpu
from vramcast.card.device.gradient_accumulation import sole_counts

GIB = 1 << 30


def test_nodes_of_the_second_graph_are_numbered_by_themselves(gpu: VirtualGpu) -> None:
    for _ in range(50):
        warm = torch.empty(4, device="cuda", requires_grad=True) * 2.0
    x = torch.empty(4, device="cuda", requires_grad=True)
    y = x.sin().sum()
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    after = x * 2.0
    assert first.grad_fn._sequence_nr() < y.grad_fn._sequence_nr()
    assert after.grad_fn._sequence_nr() == y.grad_fn._sequence_nr() + 1
    earlier = first.grad_fn._sequence_nr()
    (again,) = torch.autograd.grad(x.cos().sum(), x, create_graph=True)
    assert again.grad_fn._sequence_nr() > earlier
    del warm


def test_numbers_begin_where_they_begin_on_a_card() -> None:
    found: list[int] = []
    sole_counts.cache_clear()  # which runs backward passes of its own

    def program() -> None:
        with vramcast.virtual_gpu("h200"):
            found.append((torch.empty(4, device="cuda", requires_grad=True) * 2.0).grad_fn._sequence_nr())

    thread = threading.Thread(target=program)  # whose count nobody has used
    thread.start()
    thread.join()
    assert found == [0]


def test_first_order_passes_stay_in_the_callers_thread(gpu: VirtualGpu) -> None:
    seen: list[int] = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append(threading.get_ident())
            return gradient * 1.0

    x = torch.empty(4, device="cuda", requires_grad=True)
    Watch.apply(x).sum().backward()
    torch.autograd.grad(Watch.apply(x).sum(), x, create_graph=True)
    torch.autograd.grad(Watch.apply(x).sum(), x, create_graph=True)
    here, *there = seen
    assert here == threading.get_ident()
    assert len(set(there)) == 1 and there[0] != here


def test_autocast_reaches_the_thread(gpu: VirtualGpu) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(weight)
            return x @ weight

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            (weight,) = ctx.saved_tensors
            dtypes.append((gradient.float() @ weight.t()).dtype)
            return gradient.float() @ weight.t().float(), None

    dtypes: list[torch.dtype] = []
    x, weight = torch.empty(4, 4, device="cuda", requires_grad=True), torch.empty(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.autograd.grad(Product.apply(x, weight).float().sum(), x, create_graph=True)
    assert dtypes == [torch.bfloat16]


def test_memory_is_refused_and_freed_as_in_the_callers_thread() -> None:
    with vramcast.virtual_gpu("h200", limit_bytes=GIB) as gpu:
        x = torch.empty(60, 1 << 20, device="cuda", requires_grad=True)
        y = x.sin().sin().sum()
        with pytest.raises(torch.OutOfMemoryError):
            torch.autograd.grad(y, x, create_graph=True)
        del y
        model = nn.Linear(8, 8).cuda()
        levels = []
        for _ in range(3):
            points = torch.empty(32, 8, device="cuda", requires_grad=True)
            (slope,) = torch.autograd.grad(model(points).sum(), points, create_graph=True)
            slope.square().sum().backward()
            model.zero_grad()
            del points, slope
            levels.append(torch.cuda.memory_allocated())
        assert len(set(levels)) == 1
    assert gpu.prediction().peak_allocated_bytes <= GIB
