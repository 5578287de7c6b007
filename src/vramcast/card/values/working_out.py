"""An op on the CPU, with contents that were partly made up."""

from __future__ import annotations

from typing import Any

import torch


class CannotWorkOut(Exception):
    """Contents are not known, or an op does not take those that were made up."""


FAILURES = (CannotWorkOut, RuntimeError)
"""What ends the working out of contents. RuntimeError is what torch raises where made-up shapes or numbers do not suit
each other; whatever else is raised is a defect of ours, except in the op itself."""


_WIDEN = (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default)
"""Ops that make fp32 of fp16 inside their kernel on CUDA (as under autocast), and do not on the CPU."""


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """The op, which checks its arguments in its own words."""
    if func in _WIDEN and args[2]:
        args = [args[0].float(), args[1], False]
    try:
        return func(*args, **kwargs)
    except (TypeError, ValueError, LookupError) as error:
        raise CannotWorkOut from error
