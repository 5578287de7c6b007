"""Text files of the user's, read within limits. For a while, a file can be read as if it said something else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from vramcast.base import input_files
from vramcast.base.access import check_file

_LARGEST_BYTES = 1_000_000
_instead: ContextVar[Mapping[str, str] | None] = ContextVar("instead", default=None)


def read_text(path: Path) -> str:
    """UsageError where it cannot be read."""
    other = text_instead(path)
    if other is not None:
        return other
    check_file(path)
    return input_files.read_text(path, _LARGEST_BYTES)


@contextlib.contextmanager
def reading_instead(texts: Mapping[Path, str]) -> Iterator[None]:
    """Inside this context, these (existing) files read as the given texts: to see what an edit would mean before
    anything is written."""
    token = _instead.set({os.path.abspath(path): text for path, text in texts.items()})
    try:
        yield
    finally:
        _instead.reset(token)


def text_instead(path: Path) -> str | None:
    """What the file is read as, where that is not what it says."""
    others = _instead.get()
    return others.get(os.path.abspath(path)) if others else None
