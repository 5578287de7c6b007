"""Several cards in one process: the streams of each have numbers of their own, so a block's stream tells its card.

Cards are counted in the order in which the process first used them: the streams of the first keep their numbers.
"""

from __future__ import annotations

from vramcast.allocator.private_pools import pool_of, stream_in_pool, without_pool

_STREAM_BITS = 12
_ON_CARD = "on card "


def stream_on(place: int, stream: int) -> int:
    """The number of a stream of the first, second ... card (0, 1 ...)."""
    return place << _STREAM_BITS | stream


def place_of(stream: int) -> int:
    """Which of the cards a stream belongs to."""
    return without_pool(stream) >> _STREAM_BITS


def without_card(stream: int) -> int:
    """The number that the stream has among those of its own card."""
    own = without_pool(stream) & (1 << _STREAM_BITS) - 1
    return stream_in_pool(pool_of(stream), own) if stream < 0 else own


def mark_on(place: int, label: str) -> str:
    """A mark in a trace that concerns one card; those of the first are as they would be without the others."""
    return f"{_ON_CARD}{place}: {label}" if place else label


def read_mark(label: str) -> tuple[int, str]:
    """The card that a mark concerns, and what it says."""
    if not label.startswith(_ON_CARD):
        return 0, label
    number, _, rest = label.removeprefix(_ON_CARD).partition(": ")
    return int(number), rest
