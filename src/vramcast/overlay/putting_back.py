"""Makes an overlay show again what was there before anything was written: a second run starts as the first one did."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from vramcast.overlay.writes import is_noise

_MOST_COPIED_BYTES = 1 << 30
"""Of files that were changed or deleted, which are copied from the real folder into memory."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file or a folder that a program has made, changed or deleted."""

    place: str
    real: str
    """Where it lies on the disk, if it does."""

    @property
    def existed(self) -> bool:
        return os.path.lexists(self.real)


def changes(upper: str, lower: str, place: str, mounts: set[str]) -> Iterator[Change]:
    """What differs between an overlay at `place` and the real folder: the entries of its upper folder, and of folders
    that were deleted and made again the entries that are gone. What is mounted in it is no part of it."""
    for entry in os.scandir(upper):
        change = Change(os.path.join(place, entry.name), os.path.join(lower, entry.name))
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_noise(change.place) or change.place in mounts:
            continue
        if is_folder and os.path.isdir(change.real) and not os.path.islink(change.real):
            yield from changes(entry.path, change.real, change.place, mounts)
        elif is_folder or not _is_same(entry.path, change.real):
            yield change
    if os.path.isdir(lower):
        there = {*os.listdir(upper), *os.listdir(place)}
        yield from (
            Change(os.path.join(place, name), os.path.join(lower, name))
            for name in os.listdir(lower)
            if name not in there
        )


def put_back(found: list[Change]) -> bool:
    """False, with nothing changed, where too much would have to be copied."""
    if sum(_size(change.real) for change in found if change.existed) > _MOST_COPIED_BYTES:
        return False
    for change in found:
        if os.path.isdir(change.place) and not os.path.islink(change.place):
            shutil.rmtree(change.place)
        elif os.path.lexists(change.place):
            os.unlink(change.place)
        if not change.existed:
            continue
        if os.path.isdir(change.real) and not os.path.islink(change.real):
            shutil.copytree(change.real, change.place, symlinks=True)
        else:
            shutil.copy2(change.real, change.place, follow_symlinks=False)
    return True


def _is_same(upper: str, real: str) -> bool:
    """A file whose attributes alone were touched, or that was put back already."""
    here = os.lstat(upper)
    if not os.path.lexists(real) or not stat.S_ISREG(here.st_mode):
        return False
    there = os.lstat(real)
    return (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)


def _size(path: str) -> int:
    if os.path.islink(path) or not os.path.isdir(path):
        return os.lstat(path).st_size
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(path) for name in names)
