"""What a program would have written and deleted, had its files been real."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.base.units import format_size

_MOST_NAMED = 5
_MOST_IN_DOCUMENT = 100

NO_DATA = "vramcast-no-data"
"""Stands in a pickle for the data of a tensor, with the number of bytes."""
_MISSING = re.compile(NO_DATA.encode() + rb":(\d{1,15});")
_MOST_SEARCHED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    size_bytes: int
    existed: bool = False


@dataclass(frozen=True, slots=True)
class Writes:
    files: tuple[Write, ...] = ()
    deleted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """What would have reached the real disk, and was stopped with an error."""

    def to_document(self) -> dict[str, object]:
        """For JSON; the largest files only, where there are many."""
        files = sorted(self.files, key=lambda write: (-write.size_bytes, write.path))[:_MOST_IN_DOCUMENT]
        return {
            "n_written": len(self.files),
            "written": [{"path": write.path, "bytes": write.size_bytes, "replaces": write.existed} for write in files],
            "n_deleted": len(self.deleted),
            "deleted": sorted(self.deleted)[:_MOST_IN_DOCUMENT],
        }


def describe(writes: Writes, base: str) -> list[str]:
    """A line for each kind: the largest files first, relative to the folder `base`."""
    lines = [f"refused: {text}" for text in writes.refused[:_MOST_NAMED]]
    if writes.files:
        files = sorted(writes.files, key=lambda write: (-write.size_bytes, write.path))
        texts = [
            f"{_short(write.path, base)} {format_size(write.size_bytes)}{' (replaced)' if write.existed else ''}"
            for write in files
        ]
        lines.append("would have written: " + _listed(texts, sum(write.size_bytes for write in files[_MOST_NAMED:])))
    if writes.deleted:
        lines.append("would have deleted: " + _listed([_short(path, base) for path in sorted(writes.deleted)], None))
    return lines


def _listed(texts: Sequence[str], rest_bytes: int | None) -> str:
    text = ", ".join(texts[:_MOST_NAMED])
    more = len(texts) - _MOST_NAMED
    if more <= 0:
        return text
    return f"{text} and {more} more" + ("" if rest_bytes is None else f" ({format_size(rest_bytes)})")


def _short(path: str, base: str) -> str:
    below = os.path.relpath(path, base)
    return path if below.startswith("..") else below


def is_noise(path: str) -> bool:
    """What Python keeps for itself, and what torch.distributed writes into a temporary folder when it is imported."""
    # Of multiprocessing, and batches of a loader's workers: gone when the program ends.
    if path.startswith(("/dev/shm/sem.", "/dev/shm/torch_")):
        return True
    return path.endswith((".pyc", "/_remote_module_non_scriptable.py")) or "/__pycache__/" in path


class Sizes:
    """Sizes that files would have: a pickle of tensors without data says how much of it is missing."""

    def __init__(self) -> None:
        self._left_to_search = _MOST_SEARCHED_BYTES

    def of(self, path: str, size_bytes: int) -> int:
        """`path` is where the file lies now."""
        if not 0 < size_bytes <= self._left_to_search:
            return size_bytes
        self._left_to_search -= size_bytes
        try:
            with open(path, "rb") as file:
                return size_bytes + sum(int(number) for number in _MISSING.findall(file.read()))
        except OSError:
            return size_bytes
