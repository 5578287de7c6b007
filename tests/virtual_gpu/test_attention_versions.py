"""Attention kernels that later versions of torch choose otherwise."""

from __future__ import annotations

import pytest
import torch

from vramcast.virtual_gpu.attention_choice import choose

H200, RTX_4090, B200 = (9, 0), (8, 9), (10, 0)
OLD, DROPOUT, NEW = (2, 11), (2, 12), (2, 14)


def made(*shape: int, dtype: torch.dtype = torch.bfloat16, trains: bool = True) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=trains)


@pytest.mark.parametrize(
    ("dropout", "version", "backend"),
    [(0.1, OLD, "cudnn"), (0.1, DROPOUT, "flash"), (0.125, DROPOUT, "cudnn"), (0.0, NEW, "cudnn"), (0.1, NEW, "flash")],
)
def test_dropout_of_cudnn(dropout: float, version: tuple[int, int], backend: str) -> None:
    q = made(2, 8, 128, 64)
    assert choose(H200, q, q, q, None, dropout, False, False, version) == backend


@pytest.mark.parametrize(
    ("width", "trains", "card", "version", "backend"),
    [
        (256, True, H200, OLD, "cudnn"),
        (256, True, B200, OLD, "flash"),
        (256, True, B200, NEW, "cudnn"),
        (192, True, H200, OLD, "cudnn"),
        (192, True, H200, NEW, "flash"),
        (192, False, H200, NEW, "cudnn"),
        (128, True, H200, NEW, "cudnn"),
    ],
)
def test_wide_heads(width: int, trains: bool, card: tuple[int, int], version: tuple[int, int], backend: str) -> None:
    q = made(2, 8, 128, width, trains=trains)
    assert choose(card, q, q, q, None, 0.0, False, False, version) == backend


def test_grouped_heads_in_single_precision() -> None:
    q, kv = made(2, 8, 128, 64, dtype=torch.float32), made(2, 2, 128, 64, dtype=torch.float32)
    assert choose(RTX_4090, q, kv, kv, None, 0.0, False, True, OLD) == "math"
    assert choose(RTX_4090, q, kv, kv, None, 0.0, False, True, NEW) == "efficient"
    assert choose(RTX_4090, q, kv, kv, None, 0.0, False, False, NEW) == "math"


def test_one_head_for_all() -> None:
    q, kv = made(2, 8, 128, 64), made(2, 1, 128, 64)
    assert choose(RTX_4090, q, kv, kv, None, 0.0, False, False, OLD) == "math"
    assert choose(RTX_4090, q, kv, kv, None, 0.0, False, False, NEW) == "flash"


def test_inputs_that_start_between_two_vectors() -> None:
    whole = torch.empty(2 * 8 * 128 * 64 + 1, dtype=torch.float32, device="meta")
    q = whole[1:].view(2, 8, 128, 64)
    assert choose(RTX_4090, q, q, q, None, 0.0, False, False, OLD) == "efficient"
    assert choose(RTX_4090, q, q, q, None, 0.0, False, False, NEW) == "math"
