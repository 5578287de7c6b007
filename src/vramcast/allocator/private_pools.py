"""Pools of CUDA graphs and of torch.cuda.MemPool: memory that nothing else is given, kept while the owner lives.

A private pool keeps its blocks apart as streams do, so a block's pool is a part of the number of its stream: a negative
one, since those of real streams are addresses.
"""

from __future__ import annotations

_STREAM_BITS = 20
_GIVEN_UP = "private pool given up "
_EMPTIED = "private pool emptied "


def stream_in_pool(pool: int, stream: int) -> int:
    """The number under which a private pool (from 1 on) keeps blocks of a stream."""
    return -(pool << _STREAM_BITS | stream)


def pool_of(stream: int) -> int:
    """The private pool that a stream's number belongs to; 0 where it belongs to none."""
    return -stream >> _STREAM_BITS if stream < 0 else 0


def without_pool(stream: int) -> int:
    """The real stream behind a number, which may belong to a private pool."""
    return -stream & (1 << _STREAM_BITS) - 1 if stream < 0 else stream


def given_up(pool: int) -> str:
    """The mark in a trace after which the pool's unused segments can be given back like any other."""
    return f"{_GIVEN_UP}{pool}"


def emptied(pool: int) -> str:
    """The same, with the segments given back at once (the end of a MemPool)."""
    return f"{_EMPTIED}{pool}"


def read_mark(label: str) -> tuple[int, bool] | None:
    """The pool that a mark gives up, and whether it is emptied; None for another mark."""
    for prefix, at_once in ((_GIVEN_UP, False), (_EMPTIED, True)):
        if label.startswith(prefix):
            return int(label.removeprefix(prefix)), at_once
    return None
