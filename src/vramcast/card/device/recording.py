"""The one place where a program runs on a virtual card and leaves a trace: scripts, jobs, guarded steps and tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vramcast.card.device.context import VirtualGpu
from vramcast.memory.lengthening import lengthened
from vramcast.memory.replay import convolves, highest_without_workspaces, replay
from vramcast.trace import StepTrace

NO_LIMIT = 2**60
"""Bytes that a card may have so that what a run needs is seen in full."""


class Recording:
    """A run on a card: whether it was refused memory, and what it leaves."""

    def __init__(self, card: VirtualGpu) -> None:
        self.card = card
        self.refused = False

    def end_refused(self) -> None:
        """The run ended because memory was refused: its trace ends there too."""
        self.refused = True
        self.card.end_at_last_refusal()

    def trace(self) -> StepTrace:
        """Raises what the program caught and the card cannot predict: it went another way than on a real card."""
        if self.card.unknown_kernels:
            raise self.card.unknown_kernels[0]
        return self.card.trace()


@contextmanager
def recording(card: VirtualGpu) -> Iterator[Recording]:
    """Run what is inside on `card`. An out-of-memory error ends it, and the verdict tells."""
    run = Recording(card)
    refused = False
    with card:
        try:
            yield run
        except torch.OutOfMemoryError as error:
            refused = True
            error.__traceback__ = None  # it holds what the failed step had made
    if refused:
        run.end_refused()


def fits_with_smaller_workspaces(full: StepTrace, capacity_bytes: int) -> bool:
    """`full`, traced without a limit, does not fit as it is, but might with smaller workspaces for its convolutions: it
    is worth running again under the limit, for SETTLED_STEPS, since each step finds other room and chooses anew."""
    if not convolves(full) or highest_without_workspaces(full) > capacity_bytes:
        return False
    return not replay(lengthened(full), None, capacity_bytes).completed
