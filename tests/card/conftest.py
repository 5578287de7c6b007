"""Every test here runs on a machine without a GPU; what a torch build or a missing library cannot do is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import vramcast
from vramcast.card.device.context import VirtualGpu


@pytest.fixture
def gpu() -> Iterator[VirtualGpu]:
    """An RTX 4090 for the whole test."""
    with vramcast.virtual_gpu("rtx-4090") as card:
        yield card


@pytest.fixture(autouse=True)
def no_gpu_left_over() -> Iterator[None]:
    here = torch.cuda.is_available()
    yield
    assert torch.cuda.is_available() == here, "a virtual GPU was left behind"
    if getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", "never set") is None:
        del torch._GLOBAL_DEVICE_CONTEXT.device_context  # older versions of get_default_device fail on it
