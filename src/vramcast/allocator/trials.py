"""Memory that a library only tries out: where it is refused, the library does with less, and the run goes on.

cudnn.benchmark runs every plan for a shape that it meets first, with one workspace as large as the largest of them
needs (get_plans_from_find in aten/src/ATen/native/cudnn/Conv_v8.cpp), and then empties the cache. A run touches that
much on a card with room and does not need it. In a trace a trial is a mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from vramcast.allocator.caching import CachingAllocator
from vramcast.allocator.errors import OutOfMemory

_LABEL = "trial of "
_TRIAL = re.compile(_LABEL + r"\d{1,15}( \d{1,15})*")


def trial_label(sizes: Iterable[int]) -> str:
    """`sizes`: the workspaces of all plans, the largest first."""
    return _LABEL + " ".join(map(str, sizes))


def trials_in(labels: Sequence[str]) -> dict[int, list[int]]:
    """The sizes of each trial, by the place of its label."""
    return {
        place: [int(size) for size in label.removeprefix(_LABEL).split()]
        for place, label in enumerate(labels)
        if _TRIAL.fullmatch(label)
    }


def try_out(allocator: CachingAllocator, sizes: Iterable[int], stream: int = 0) -> None:
    """Take the largest that there is room for and give it back; half of it whenever it is refused."""
    room = allocator.largest_available_bytes
    size = next((size for size in sizes if room is None or size <= room), 0)
    while size:
        try:
            allocator.free(allocator.malloc(size, stream))
            return
        except OutOfMemory:
            size //= 2
