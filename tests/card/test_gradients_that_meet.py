"""Where the autograd engine adds gradients in place: seen on the CPU with no mode active, then on the virtual card."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.card.reading import ops
from vramcast.card.device.context import VirtualGpu

ELEMENTS = 1000


def both_alone(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x.cos() * x.sin() + z


def first_is_shared(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """The sum hands one gradient to both of its inputs; that of the cosine is its own, but comes second."""
    other = z.sin()
    return x.cos() + (x + other)


def second_is_shared(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    other = z.sin()
    total = x + other
    return x.cos().mul(2.0) + total


def twice_from_one_node(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return x * x + z


def _additions_on_cpu(graph: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> int:
    """New tensors made by additions, as torch's profiler sees them."""
    x, z = (torch.randn(ELEMENTS, requires_grad=True) for _ in range(2))
    y = graph(x * 1.0, z)
    with torch.autograd.profiler.profile() as profile:
        y.backward(torch.ones(ELEMENTS))
    return sum(event.name == "aten::add" for event in profile.function_events)


@pytest.mark.parametrize("graph", [both_alone, first_is_shared, second_is_shared, twice_from_one_node])
def test_only_the_gradient_that_came_first_is_added_to(
    gpu: VirtualGpu, graph: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    x, z = (torch.empty(ELEMENTS, device="cuda", requires_grad=True) for _ in range(2))
    y = graph(x * 1.0, z)
    gradient = torch.ones(ELEMENTS, device="cuda")
    first = gpu.trace().n_blocks
    y.backward(gradient)
    made = ops(gpu.trace())[first:].count("aten.add.Tensor")
    with torch.utils._python_dispatch._disable_current_modes():
        expected = _additions_on_cpu(graph)
    assert made == expected


def test_a_formula_adds_its_own_terms_out_of_place(gpu: VirtualGpu) -> None:
    """cholesky_backward adds the transpose of a triangle to the triangle, both of which it alone holds."""
    a = torch.empty(64, 64, device="cuda", requires_grad=True)
    factor = torch.linalg.cholesky(a)
    first = gpu.trace().n_blocks
    factor.backward(torch.ones(64, 64, device="cuda"))
    made = ops(gpu.trace())[first:]
    assert made[made.index("aten.tril") :][:4] == ["aten.tril", "aten.tril", "aten.add.Tensor", "aten.mul.Scalar"]


def test_formulas_that_work_in_place(gpu: VirtualGpu) -> None:
    """Recorded without a mode: one tensor of zeros for an index, one tensor for a loss of logits."""
    x = torch.empty(ELEMENTS, device="cuda", requires_grad=True)
    index = torch.zeros(10, dtype=torch.int64, device="cuda")
    picked = (x * 1.0)[index]
    first = gpu.trace().n_blocks
    picked.backward(torch.empty(10, device="cuda"))
    assert list(gpu.trace().requested_bytes[first:]).count(4 * ELEMENTS) == 2  # the zeros, and what mul makes of them

    loss = torch.nn.functional.binary_cross_entropy_with_logits(x, torch.empty(ELEMENTS, device="cuda"))
    first = gpu.trace().n_blocks
    torch.autograd.grad(loss, x)
    assert list(gpu.trace().requested_bytes[first:]).count(4 * ELEMENTS) == 1


def test_a_sparse_gradient_is_kept_as_it_is(gpu: VirtualGpu) -> None:
    table = torch.nn.Embedding(500, 64, sparse=True, device="cuda")
    out = table(torch.zeros(100, dtype=torch.int64, device="cuda"))
    first = gpu.trace().n_blocks
    out.backward(torch.empty_like(out))
    assert "aten.clone" not in ops(gpu.trace())[first:]
    assert table.weight.grad is not None and table.weight.grad.is_sparse


def test_a_mask_is_added_to_the_scores_of_written_out_attention(gpu: VirtualGpu) -> None:
    q = torch.empty(2, 3, 30, 15, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    mask = torch.empty(2, 3, 30, 30, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    made = ops(gpu.trace())
    assert "aten._safe_softmax" in made and "aten.add.Tensor" not in made
