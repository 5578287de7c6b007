"""Memory that a library only tries out: where it is refused, the library does with less, and the run goes on.

cudnn.benchmark runs every plan for a shape that it meets first, with one workspace as large as the largest of them
needs (get_plans_from_find in aten/src/ATen/native/cudnn/Conv_v8.cpp), and then empties the cache. A run touches that
much on a card with room and does not need it. In a trace a trial is a mark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vramcast.allocator.caching import CachingAllocator
from vramcast.allocator.errors import OutOfMemory

_SIZE = r"\d{1,15}"
_TRIAL = re.compile(rf"trial of ({_SIZE}(?: {_SIZE})*), taken: ({_SIZE}), or from ({_SIZE}) to ({_SIZE})")


@dataclass(frozen=True, slots=True)
class Trial:
    """The workspaces of all plans, the largest first; what the run is taken to use from then on; and the least and the
    most that it may use, because the fastest plan is only known on the card."""

    sizes: tuple[int, ...]
    assumed_bytes: int
    least_bytes: int
    most_bytes: int

    @property
    def label(self) -> str:
        sizes = " ".join(map(str, self.sizes))
        return f"trial of {sizes}, taken: {self.assumed_bytes}, or from {self.least_bytes} to {self.most_bytes}"


def trials_in(labels: Sequence[str]) -> dict[int, Trial]:
    """Each trial, by the place of its label."""
    matches = {place: _TRIAL.fullmatch(label) for place, label in enumerate(labels)}
    return {
        place: Trial(tuple(map(int, match[1].split())), *map(int, match.groups()[1:]))
        for place, match in matches.items()
        if match is not None
    }


def try_out(allocator: CachingAllocator, trial: Trial, stream: int = 0) -> None:
    """Take the largest that there is room for and give it back; half of it whenever it is refused."""
    room = allocator.largest_available_bytes
    size = next((size for size in trial.sizes if room is None or size <= room), 0)
    while size:
        try:
            allocator.free(allocator.malloc(size, stream))
            return
        except OutOfMemory:
            size //= 2
