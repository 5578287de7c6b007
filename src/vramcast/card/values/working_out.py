"""An op on the CPU, with contents that were partly made up."""

from __future__ import annotations

from typing import Any


class CannotWorkOut(Exception):
    """Contents are not known, or an op does not take those that were made up."""


FAILURES = (CannotWorkOut, RuntimeError)
"""What ends the working out of contents. RuntimeError is what torch raises where made-up shapes or numbers do not suit
each other; whatever else is raised is a defect of ours, except in the op itself."""


def call(func: Any, args: Any, kwargs: Any) -> Any:
    """The op, which checks its arguments in its own words."""
    try:
        return func(*args, **kwargs)
    except (TypeError, ValueError, LookupError) as error:
        raise CannotWorkOut from error
