"""Errors that a script catches and goes on from. Where no step follows, the run says nothing about training."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch

from vramcast.base.errors import CannotPredict
from vramcast.card.device.context import VirtualGpu
from vramcast.card.dispatch.failures import Failure, assumptions, failure_of
from vramcast.card.dispatch.unknown import is_of_torch, is_of_vramcast

_EXPECTED = (ImportError, StopIteration, torch.OutOfMemoryError, CannotPredict)
"""Scripts try whether a package is there; memory that was refused and kernels without a rule are told elsewhere."""


@dataclass(frozen=True, slots=True)
class _Caught:
    failure: Failure
    through_torch: bool
    """Raised by torch or the card, or by code that these called."""
    after_optimizer: bool
    """Whether there was an optimizer by then, so that a step was to come."""
    n_blocks: int
    """Allocations until then."""


class Swallowed:
    """`note` is called at the beginning of each handler of the script."""

    def __init__(self, card: VirtualGpu, path: str) -> None:
        self._card = card
        self._path = path
        self._latest: _Caught | None = None

    def note(self) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, _EXPECTED):
            failure = failure_of(error, self._path)
            self._latest = _Caught(failure, _through_torch(error), self._card.had_optimizer, self._card.n_blocks)

    def check(self) -> None:
        """After a script that ended by itself without a training step: CannotPredict where an error was the cause.

        It was where an optimizer was waiting to make steps; otherwise where the error came out of torch, and nothing
        was done on the card after it.
        """
        latest = self._latest or self._failed_op()
        if latest is None:
            return
        is_last = latest.through_torch and latest.n_blocks == self._card.n_blocks
        if latest.after_optimizer or is_last:
            raise CannotPredict(
                "no training step was seen: the script caught an error and ended without one. "
                f"{latest.failure.sentence()}{latest.failure.remedy}{assumptions(self._card.assumed_values)}"
            )

    def _failed_op(self) -> _Caught | None:
        """An op whose error was caught elsewhere, in a module that the script imports."""
        failed = self._card.failed_op
        if failed is None:
            return None
        failure = Failure(failed.reason, failed.where, failed.is_ours)
        return _Caught(failure, True, failed.after_optimizer, failed.n_blocks)


def _through_torch(error: BaseException) -> bool:
    trace = None if isinstance(error, OSError) else error.__traceback__  # files and programs pass through us too
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if is_of_torch(filename) or is_of_vramcast(filename):
            return True
        trace = trace.tb_next
    return False
