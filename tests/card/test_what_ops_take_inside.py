"""What ops take beside their results: the order in which PyTorch's own CUDA code asks its allocator for it, on the
stand-in for a card (`python -m lab.standin`, torch 2.11)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.card.test_what_ops_take import events_of, on_card

IMAGE = 4 * 8 * 32 * 32 * 4
"""Bytes of the images below."""


def images() -> Tensor:
    return on_card(4, 8, 32, 32)


def channels_last() -> Tensor:
    return images().to(memory_format=torch.channels_last)


def part() -> Tensor:
    """Every second group of channels: a view that is dense in no format."""
    return on_card(4, 16, 32, 32)[:, :8]


def taken(prepare: Callable[[], Tensor], op: Callable[[Tensor], object]) -> list[int]:
    return events_of(lambda: (prepare(),), op)


def test_logsumexp_subtracts_the_largest_first() -> None:
    row = IMAGE // 8
    events = taken(images, lambda x: x.logsumexp(1))
    assert sorted(events) == sorted([row, row, row // 4, -row // 4, -row, IMAGE, row, -IMAGE, -row])
    assert max(sum(events[: end + 1]) for end in range(len(events))) == IMAGE + 2 * row


def test_a_distance_keeps_the_difference() -> None:
    assert taken(images, lambda x: torch.dist(x, x)) == [IMAGE, 4, -IMAGE]


def test_a_bilinear_form_goes_through_its_outputs_one_by_one() -> None:
    events = taken(lambda: on_card(1024, 32), lambda x: F.bilinear(x, x, on_card(5, 32, 32)))
    assert events.count(1024 * 32 * 4) == 5 and events.count(1024 * 4) == 5


def test_whether_numbers_are_infinite_is_asked_of_their_sizes() -> None:
    assert taken(images, torch.isinf) == [IMAGE, IMAGE // 4, -IMAGE]


def test_numbers_that_are_not_zero_are_counted_in_a_mask() -> None:
    elements = IMAGE // 4
    assert taken(images, lambda x: x.count_nonzero(1)) == [elements, elements, 8 * elements, -8 * elements, -elements]


def test_the_soft_margin_keeps_what_was_as_large_as_its_input() -> None:
    assert taken(images, lambda x: F.soft_margin_loss(x, x)) == [IMAGE, 4, -4]


@pytest.mark.parametrize("make", [images, part], ids=["dense", "view"])
def test_masked_scatter_numbers_the_elements(make: Callable[[], Tensor]) -> None:
    events = taken(make, lambda x: x.masked_scatter(x > 0, x))
    assert events == [IMAGE // 4, IMAGE, 2 * IMAGE, 1791, -1791, -2 * IMAGE, -IMAGE // 4]


CASES: dict[str, tuple[Callable[[Tensor], object], list[int], list[int]]] = {
    # op: (call, of channels-last images, of a view)
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, 4), [2048], [IMAGE, 2048, -IMAGE]),
    "adaptive maximum": (
        lambda x: F.adaptive_max_pool2d(x, 4, return_indices=True),
        [2048, 4096, 2048, 4096, IMAGE, -IMAGE, -4096, -2048],
        [2048, 4096, IMAGE, -IMAGE],
    ),
    "maximum of windows": (
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        [32768, 65536],
        [32768, 65536, IMAGE, -IMAGE],
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), [4 * IMAGE], [4 * IMAGE, IMAGE, -IMAGE]),
    "antialiased": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
        [32768, 32768, IMAGE, -IMAGE, -32768],
        [32768, IMAGE, -IMAGE],
    ),
    "reflected edges": (
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        [147968, IMAGE, -IMAGE],
        [147968, IMAGE, -IMAGE],
    ),
    "largest of all": (torch.max, [4, IMAGE, -IMAGE], [4, IMAGE, -IMAGE]),
    "medians": (
        lambda x: x.median(dim=3),
        [IMAGE, 4096, 8192, -IMAGE],
        [IMAGE, 4096, 8192, -IMAGE],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_dense_is_copied(name: str) -> None:
    call, turned, viewed = CASES[name]
    for make, expected in ((images, None), (channels_last, turned), (part, viewed)):
        events = taken(make, call)
        assert expected is None or _height(events) == _height(expected), (make.__name__, events)


def test_normalization_in_groups_without_weights_scales_nothing() -> None:
    assert taken(images, lambda x: torch.native_group_norm(x, None, None, 4, 8, 1024, 4, 1e-5)) == [IMAGE, 64, 64]


def backward_of(op: Callable[[Tensor], Tensor]) -> list[int]:
    """Allocations and releases of the backward pass of `op` amid others."""

    def prepare() -> tuple[Tensor, Tensor]:
        out = op(on_card(4, 8, 32, 32, requires_grad=True) * 1.5) * 2.0
        return out, torch.ones_like(out)

    return events_of(prepare, lambda out, gradient: out.backward(gradient))


def test_a_formula_leaves_the_gradient_that_it_was_given() -> None:
    events = backward_of(lambda x: x.masked_fill(x > 0, 0.0))
    assert events == [IMAGE, IMAGE, -IMAGE, -IMAGE // 4, IMAGE, -IMAGE]


def test_a_formula_writes_over_the_zeros_it_has_made() -> None:
    gathered, positions = IMAGE // 4, IMAGE // 2
    events = backward_of(lambda x: x.gather(1, torch.zeros(4, 2, 32, 32, dtype=torch.long, device="cuda")))
    assert events[:4] == [gathered, IMAGE, -gathered, -positions]


def test_a_weight_of_positives_goes_on_in_place() -> None:
    positives = torch.ones(32)
    events = backward_of(
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x), pos_weight=positives.cuda())
    )
    assert events[:5] == [4, IMAGE, IMAGE, IMAGE, -IMAGE]


def test_a_running_product_holds_both_turned_copies() -> None:
    events = backward_of(lambda x: x.cumprod(3))
    assert _height(events)[0] == 5 * IMAGE + IMAGE // 4


def test_antialiased_upsampling_copies_the_gradient_alone() -> None:
    half = IMAGE // 4

    def prepare() -> tuple[Tensor, Tensor]:
        out = F.interpolate(channels_last().requires_grad_(), scale_factor=0.5, mode="bilinear", antialias=True)
        return out, torch.ones_like(out)

    events = events_of(prepare, lambda out, gradient: out.backward(gradient))
    assert _height(events)[0] == IMAGE + half


def _height(events: list[int]) -> tuple[int, int]:
    """What is taken at most, and what is left."""
    return max(sum(events[: end + 1]) for end in range(len(events))), sum(events)
