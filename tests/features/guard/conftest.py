"""No watch may outlive a test: its hook would count the steps of the next one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from vramcast.features.guard import watch


@pytest.fixture(autouse=True)
def nothing_is_left_watching() -> Iterator[None]:
    yield
    left = list(watch._watching)
    for one in left:
        one.stop()
    assert not left, "a guard was not closed"
    assert not torch.cuda.is_initialized()
