"""The errors that vramcast raises, for those who catch them."""

from vramcast.base.errors import (
    CannotPredict,
    DoesNotFit,
    GuardWarning,
    StepRefused,
    TooManyElements,
    UsageError,
    VramcastError,
)

__all__ = [
    "CannotPredict",
    "DoesNotFit",
    "GuardWarning",
    "StepRefused",
    "TooManyElements",
    "UsageError",
    "VramcastError",
]
