"""Attention kernels that versions of torch choose differently."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vramcast.base.torch_versions import CUDNN_OF_WHEEL, Version
from vramcast.card.choices import attention as attention_choice

H200, RTX_4090, B200 = (9, 0), (8, 9), (10, 0)
OLD, DROPOUT, NEW = (2, 11), (2, 12), (2, 14)


def choose(capability: tuple[int, int], *arguments: Any) -> str:
    """With the cuDNN of that version's wheel, whichever is installed here."""
    version: Version = arguments[-1]
    return attention_choice.choose(capability, *arguments, cudnn=CUDNN_OF_WHEEL[version])


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


@pytest.mark.parametrize(
    ("version", "card", "backend"),
    [
        ((2, 6), H200, "flash"),
        ((2, 8), H200, "flash"),
        ((2, 9), H200, "cudnn"),
        ((2, 10), H200, "flash"),  # its cuDNN 9.10 is too old to go first
        ((2, 11), H200, "cudnn"),
        ((2, 6), B200, "math"),  # no kernels for Blackwell yet
        ((2, 8), B200, "flash"),
        ((2, 9), B200, "cudnn"),
        ((2, 6), RTX_4090, "flash"),
        ((2, 14), RTX_4090, "flash"),
    ],
)
def test_which_kernel_is_asked_first(version: Version, card: tuple[int, int], backend: str) -> None:
    q = made(2, 8, 128, 64)
    assert choose(card, q, q, q, None, 0.0, False, False, version) == backend


@pytest.mark.parametrize(
    ("version", "cudnn", "width", "backend"),
    [
        ((2, 9), 91002, 256, "cudnn"),
        ((2, 9), 90900, 256, "flash"),
        ((2, 13), 92000, 256, "flash"),
        ((2, 13), 92300, 256, "cudnn"),
        ((2, 10), 91002, 128, "flash"),
        ((2, 10), 91600, 128, "cudnn"),
    ],
)
def test_the_cudnn_that_is_there(version: Version, cudnn: int, width: int, backend: str) -> None:
    q = made(2, 8, 128, width)
    assert attention_choice.choose(H200, q, q, q, None, 0.0, False, False, version, cudnn) == backend


def test_cudnn_alone_is_asked_last_by_old_versions() -> None:
    q, one = made(2, 8, 128, 64), made(2, 8, 1, 64)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        assert choose(H200, q, q, q, None, 0.0, False, False, (2, 6)) == "cudnn"
        with pytest.raises(RuntimeError, match="No available kernel"):
            choose(H200, one, q, q, None, 0.0, False, False, (2, 8))
        assert choose(H200, one, q, q, None, 0.0, False, False, (2, 9)) == "cudnn"
