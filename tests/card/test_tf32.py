"""Switches for TF32, set in either of torch's ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vramcast.card.choices import tf32

matmul: Any = torch.backends.cuda.matmul


@pytest.fixture
def as_before() -> Iterator[None]:
    before = matmul.fp32_precision
    yield
    matmul.fp32_precision = before


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="this torch knows only the older way")
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("ieee", False)])
def test_products(precision: str, allowed: bool) -> None:
    matmul.fp32_precision = precision
    assert tf32.in_matmul() is allowed
    assert tf32.in_cudnn() in (True, False)
