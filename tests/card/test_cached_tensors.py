"""What a model keeps in the caches of its functions is allocated in every run, not only in the first of a process."""

from __future__ import annotations

from functools import cache, lru_cache

import pytest
import torch

import vramcast


@lru_cache
def limited(size: int) -> torch.Tensor:
    return torch.zeros(size, size, device="cuda")


@cache
def unlimited(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.zeros(size, size, device="cuda"),)


@lru_cache
def plain(size: int) -> int:
    return size


@pytest.mark.parametrize("function", [limited, unlimited])
def test_a_second_run_allocates_its_own(function: object) -> None:
    assert callable(function)
    plain(3)
    peaks = []
    for _ in range(2):
        with vramcast.virtual_gpu("rtx-4090") as gpu:
            function(2048)
            function(2048)
        peaks.append(gpu.prediction().peak_allocated_bytes)
    assert peaks == [4 * 2048**2] * 2
    assert plain.cache_info().currsize == 1, "caches without tensors stay"
