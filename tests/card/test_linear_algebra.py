"""Linear algebra whose meta kernels PyTorch lacks. Sizes follow aten/src/ATen/native/BatchLinearAlgebra.cpp."""

from __future__ import annotations

import torch

from tests.card.reading import sizes_of
from vramcast.card.device.context import VirtualGpu


def test_factors_of_geqrf_are_a_copy_column_by_column(gpu: VirtualGpu) -> None:
    a = torch.empty(3, 1024, 256, device="cuda")
    factors, tau = torch.geqrf(a)
    assert factors.stride() == (1024 * 256, 1, 1024) and tau.shape == (3, 256)
    assert sizes_of(gpu.trace(), "aten.geqrf") == [a.nbytes, tau.nbytes]


def test_least_squares_works_in_copies(gpu: VirtualGpu) -> None:
    a, b = torch.empty(1024, 256, device="cuda"), torch.empty(1024, 64, device="cuda")
    answer = torch.linalg.lstsq(a, b)
    assert answer.solution.shape == (256, 64) and answer.solution.stride() == (1, 1024)
    assert answer.residuals.shape == (64,)
    assert sizes_of(gpu.trace(), "aten.linalg_lstsq") == [4, b.nbytes, a.nbytes, 4 * 256, 4 * 64]
    assert torch.linalg.lstsq(a, b[:, 0]).solution.shape == (256,)
