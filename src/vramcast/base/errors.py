"""Errors that vramcast raises on purpose, each with the exit code the command line ends with."""

from __future__ import annotations

from vramcast.base.plain_text import printable

DEFECT = "this is a defect of vramcast, not of your code"


class VramcastError(Exception):
    """Base of every error that is an answer to the user rather than a defect."""

    exit_code: int = 2

    def __str__(self) -> str:
        """Messages quote files and names: whatever these hold, a terminal only shows it."""
        return printable(super().__str__())


class UsageError(VramcastError):
    """The request itself is wrong: an unknown option, key, file or value."""

    exit_code = 2


class CannotPredict(VramcastError):
    """The request is well formed, but an honest number cannot be given for it."""

    exit_code = 3


class StepRefused(CannotPredict):
    """A kernel does not take tensors as large as this step's; smaller ones would run."""


class TooManyElements(RuntimeError):
    """What PyTorch raises where a kernel does not take that many elements; on the virtual card."""


class DoesNotFit(VramcastError):
    """A run that was about to start would not fit the card; `result` says by how much and why."""

    exit_code = 1

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class GuardWarning(UserWarning):
    """Said by a guard: it will not fit, or the card is nearly full."""
