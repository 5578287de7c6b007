"""A batch a little below the largest, for runs in the lab: one that also runs if a prediction is off by a little.

Of a thousand samples ten are a price for not running out of memory; of three samples one is not. So what is advised may
be the largest itself.
"""

from __future__ import annotations

from vramcast.gpus import GpuSpec
from vramcast.memory.replay import convolves
from vramcast.prediction.scaling import Largest, Sizes

_SPARED = 10
"""Thousandths of the memory that an advised batch leaves free."""
_PRICE = 20
"""Thousandths of the largest batch that this may cost at most."""
_LESS_WORKSPACE_PRICE = 25
"""The same where the largest fits only with smaller workspaces: then one block that comes to lie elsewhere changes
which workspaces there is room for, and so everything after it."""
_LESS = (3, 6, 10)
"""Thousandths of the memory without which a batch with convolutions has to run as well: each time others are
refused."""
_TRIED = 6


def advised(sizes: Sizes, largest: Largest, gpu: GpuSpec, limit_bytes: int | None = None) -> int:
    """The number to advise: the largest that leaves a little free, where that costs next to nothing."""
    number = largest.number
    if not number:
        return 0
    trace = sizes.trace(number, gpu)
    if limit_bytes is None:
        limit_bytes = sizes.capacity(number, gpu)
    if convolves(trace):
        return _steadiest(sizes, number, gpu, limit_bytes)
    least = _at_least(number, _PRICE)
    if least == number:
        return number
    spared = sizes.largest(gpu, number, _without(limit_bytes, _SPARED), near=least).number
    return max(least, spared) if sizes.needs(max(least, spared), gpu, limit_bytes)[0] else number


def _steadiest(sizes: Sizes, number: int, gpu: GpuSpec, limit_bytes: int) -> int:
    """The largest that also runs with less memory, with any of several amounts; else the one that runs with most."""
    least = _at_least(number, _LESS_WORKSPACE_PRICE if sizes.needs_less_workspace(number, gpu, limit_bytes) else _PRICE)
    if least == number:
        return number
    stride = -(-(number - least) // _TRIED)
    best, most = number, -1
    for candidate in range(number, least - 1, -stride):
        if not sizes.needs(candidate, gpu, limit_bytes)[0]:
            continue
        runs = sum(sizes.needs(candidate, gpu, _without(limit_bytes, less))[0] for less in _LESS)
        if runs > most:
            best, most = candidate, runs
        if most == len(_LESS):
            break
    return best


def _at_least(number: int, price: int) -> int:
    return -(-number * (1000 - price) // 1000)


def _without(capacity_bytes: int, thousandths: int) -> int:
    return capacity_bytes * (1000 - thousandths) // 1000
