"""Text files of the user's, read within limits. For a while, a file can be read as if it said something else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path

from vramcast.access import check_file
from vramcast.errors import UsageError

_LARGEST_BYTES = 1_000_000
_instead: ContextVar[Mapping[str, str] | None] = ContextVar("instead", default=None)


def read_text(path: Path) -> str:
    """UsageError where it cannot be read."""
    other = text_instead(path)
    if other is not None:
        return other
    check_file(path)
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{path} is too large for a config: more than {_LARGEST_BYTES // 1000} kB")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None


@contextlib.contextmanager
def reading_instead(texts: Mapping[Path, str]) -> Iterator[None]:
    """Inside, these files (which are there) say this: what an edit would mean, before anything is written."""
    token = _instead.set({os.path.abspath(path): text for path, text in texts.items()})
    try:
        yield
    finally:
        _instead.reset(token)


def text_instead(path: Path) -> str | None:
    """What the file is read as, where that is not what it says."""
    others = _instead.get()
    return others.get(os.path.abspath(path)) if others else None
