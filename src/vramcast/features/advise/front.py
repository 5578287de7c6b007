"""The combinations that no other beats in both memory and time, and a few that stand for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import log

from vramcast.features.advise.combination import Combination

FASTER = 0.99
"""One option counts as faster than another if it takes at most this share of its time."""
_NEAR = 0.08
"""Points of the front whose memory differs by less than this share are one."""


def pareto(
    combinations: Iterable[Combination], size: Callable[[Combination], int], time: Callable[[Combination], float]
) -> list[Combination]:
    """Combinations that no other beats in both size and time, least memory first; a tiny gain in time does not
    count."""
    kept: list[Combination] = []
    for combination in sorted(
        combinations,
        key=lambda combination: (size(combination), time(combination), combination.risk, len(combination.options)),
    ):
        if not kept or time(combination) <= time(kept[-1]) * FASTER:
            kept.append(combination)
    return kept


def spread(front: Sequence[Combination], size: Callable[[Combination], int], most: int) -> list[Combination]:
    """At most `most` points of a front: both ends, then each time the point farthest from all chosen so far."""
    if not front:
        return []
    taken = list(dict.fromkeys((front[0], front[-1])))
    rest = [combination for combination in front if combination not in taken]

    def distance(combination: Combination) -> float:
        return min(abs(log(max(1, size(combination)) / max(1, size(other)))) for other in taken)

    while rest and len(taken) < most:
        farthest = max(rest, key=distance)
        if distance(farthest) < _NEAR:
            break
        taken.append(farthest)
        rest.remove(farthest)
    return [combination for combination in front if combination in taken]
