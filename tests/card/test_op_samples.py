"""torch's own samples of its operators: every byte that is alive is booked, or vramcast says that it cannot follow.

A part of them; `python -m lab.checking.check_ops` runs all.
"""

from __future__ import annotations

import pytest
import torch

from lab.checking.check_ops import sweep

RESIZING = ["cat", "sort", "topk", "cumsum", "index_select", "take", "nonzero", "masked_select", "matmul", "addmm"]
VARIANTS = {"function", "method", "in place", "of views", "backward", "out= right", "out= empty", "out= too small",
            "out= too large", "out= strided"}  # fmt: skip


@pytest.mark.slow
def test_samples_of_one_operator_in_twelve() -> None:
    found = sweep(samples=1, dtypes=(torch.float32,), every=12)
    assert not found.failed
    assert set(found.checked) >= VARIANTS
    assert sum(found.checked.values()) >= 300 and len(found.operators) >= 45


def test_samples_of_operators_that_resize() -> None:
    found = sweep(only=RESIZING, samples=2, dtypes=(torch.float32,))
    assert not found.failed
    assert sum(found.checked.values()) >= 200
