"""What reading a job may touch: which files, and whether code that it names may run.

On the command line everything may: whoever types a path means it. A server that answers others sets limits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from vramcast.errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    root: Path
    """Files are read only below it; links count as what they point at."""
    allow_code: bool = False


_LIMITS: ContextVar[Limits | None] = ContextVar("limits", default=None)


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)


def check_file(path: Path) -> None:
    """UsageError where the file, or folder, may not be read."""
    limits = _LIMITS.get()
    if limits is None:
        return
    try:
        inside = path.resolve().is_relative_to(limits.root.resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    if not inside:
        raise UsageError(f"{path}: outside {limits.root}, below which files may be read (--root of `vramcast mcp`)")


def check_code(what: str) -> None:
    """UsageError where code may not run."""
    limits = _LIMITS.get()
    if limits is not None and not limits.allow_code:
        raise UsageError(f"{what}: runs Python code, which this server does not; start it with --allow-code for that")
