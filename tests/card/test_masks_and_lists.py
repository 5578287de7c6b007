"""Masks of bytes, sides of two dtypes, and lists of Python numbers that choose places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.card.test_what_ops_take import events_of, on_card
from vramcast.card.device.context import VirtualGpu


def test_a_mask_of_bytes_becomes_one_of_booleans_first() -> None:
    prepare = lambda: ((on_card(1024) > 0).byte(), on_card(1024), on_card(1024))  # noqa: E731
    assert events_of(prepare, torch.where) == [1024, 4096, -1024]


def test_the_sides_of_a_choice_become_of_one_dtype_first() -> None:
    prepare = lambda: (on_card(1024) > 0, on_card(1024, dtype=torch.float16), on_card(1024))  # noqa: E731
    assert events_of(prepare, torch.where) == [4096, 4096, -4096]


def test_a_number_on_the_host_is_put_on_the_card() -> None:
    events = events_of(lambda: (on_card(1024) > 0, on_card(1024), torch.tensor(0.0)), torch.where)
    assert events == [4, 4096, -4]


def test_known_bytes_choose_known_values(gpu: VirtualGpu) -> None:
    mask = torch.tensor([1, 0, 1], dtype=torch.uint8).cuda()
    assert torch.where(mask, torch.ones(3).cuda(), torch.zeros(3).cuda()).tolist() == [1, 0, 1]


def _put(x: torch.Tensor) -> None:
    x[x.byte()] = 1.0


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.masked_fill(x.byte(), 1.0),
        lambda x: x.masked_fill_(x.byte(), 1.0),
        lambda x: x.masked_select(x.byte()),
        lambda x: 1 - (x > 0),
        _put,
    ],
)
def test_what_cuda_refuses_is_refused(use: Callable[[torch.Tensor], Any], gpu: VirtualGpu) -> None:
    """As scripts for torch 1 do, which end on a card, too."""
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError):
            use(torch.ones(4, device=device))


@pytest.mark.parametrize(
    "place",
    [
        ([True, False, True], slice(None)),
        [True, False, True],
        ([0, 2],),
        range(0, 3, 2),
        ([[0], [2]], slice(None)),
    ],
    ids=["booleans and a slice", "booleans", "numbers", "range", "nested"],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_list_chooses_on_either_side(device: str, place: Any, gpu: VirtualGpu) -> None:
    """Beside weights, which are left without data on the host, too: loralib makes its mask so."""
    weight = nn.Linear(1024, 3072).to(device).weight
    chosen = weight.new_zeros(3072, dtype=torch.bool).view(3, -1)
    chosen[place] = True
    assert weight[chosen.view(-1)].shape == (2048, 1024)
