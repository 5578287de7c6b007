"""The cards that this process sees, and which of them is the current one.

A process of a distributed job sees all cards of its node and uses the one that it chooses by its local rank; a program
without ranks may use several. What asks for a card that the machine does not have fails as CUDA and PyTorch fail.
"""

from __future__ import annotations

from typing import Any

import torch


class Card:
    """Which of the machine's cards is the current one, and how many there are."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, count: int = 1) -> None:
        self.count = count
        self.index = 0
        self.device = torch.device("cuda", 0)

    def choose(self, index: int) -> None:
        """The program makes this card the current one. A negative number asks for nothing."""
        if index >= 0:
            self.index = index
            self.device = torch.device("cuda", index)


CARD = Card()


def _note() -> str:
    return "the virtual GPU is one card, cuda:0" if CARD.count == 1 else f"there are {CARD.count} cards on each machine"


def index_of(device: Any) -> int:
    """The number of the card that is meant; None and a bare "cuda" mean the one in use."""
    if device is None or isinstance(device, int):
        return CARD.index if device is None else int(device)
    chosen = torch.device(device) if isinstance(device, str) else device
    if isinstance(chosen, torch.device):
        if chosen.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {chosen}")
        return CARD.index if chosen.index is None else chosen.index
    return int(chosen.idx)


def check_ordinal(device: Any) -> int:
    """Check a device number as the driver does. A negative number asks for nothing."""
    index = index_of(device)
    if index >= CARD.count:
        kind: Any = getattr(torch, "AcceleratorError", RuntimeError)
        raise kind(
            f"CUDA error: invalid device ordinal (cuda:{index}): {_note()}\n"
            "GPU device may be out of range, do you have enough GPUs?"
        )
    return index


def check_id(device: Any) -> None:
    """Check a device number as torch.cuda does, against device_count()."""
    if not 0 <= index_of(device) < CARD.count:
        raise AssertionError(f"Invalid device id ({index_of(device)}: {_note()})")


def check_stream(device: Any) -> None:
    index = index_of(device)
    if index >= CARD.count:
        raise RuntimeError(f"Device index value {index} is out of index range [0, {CARD.count}): {_note()}")


def check_allocator(device: Any) -> None:
    """Check a device number as the allocator does."""
    index = index_of(device)
    if index >= CARD.count:
        raise RuntimeError(f"Invalid device argument {index}: did you call init? ({_note()})")


def check_generator(device: Any) -> None:
    if index_of(device) >= CARD.count:
        raise IndexError(f"tuple index out of range ({_note()})")
