"""There is one card, cuda:0. What asks for another fails as CUDA and PyTorch fail on a machine with one."""

from __future__ import annotations

from typing import Any

import torch

_NOTE = "the virtual GPU is one card, cuda:0"


def index_of(device: Any) -> int:
    """The number of the card that is meant; None and a bare "cuda" mean the only one."""
    if device is None or isinstance(device, int):
        return 0 if device is None else int(device)
    chosen = torch.device(device) if isinstance(device, str) else device
    if isinstance(chosen, torch.device):
        if chosen.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {chosen}")
        return chosen.index or 0
    return int(chosen.idx)


def check_ordinal(device: Any) -> int:
    """What the driver is asked for. A negative number asks for nothing."""
    index = index_of(device)
    if index > 0:
        kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
        raise kind(
            f"CUDA error: invalid device ordinal (cuda:{index}): {_NOTE}\n"
            "GPU device may be out of range, do you have enough GPUs?"
        )
    return index


def check_id(device: Any) -> None:
    """What torch.cuda compares with device_count()."""
    if not 0 <= index_of(device) < 1:
        raise AssertionError(f"Invalid device id ({index_of(device)}: {_NOTE})")


def check_stream(device: Any) -> None:
    index = index_of(device)
    if index > 0:
        raise RuntimeError(f"Device index value {index} is out of index range [0, 1): {_NOTE}")


def check_allocator(device: Any) -> None:
    """What the allocator is asked about."""
    index = index_of(device)
    if index > 0:
        raise RuntimeError(f"Invalid device argument {index}: did you call init? ({_NOTE})")


def check_generator(device: Any) -> None:
    if index_of(device) > 0:
        raise IndexError(f"tuple index out of range ({_NOTE})")
