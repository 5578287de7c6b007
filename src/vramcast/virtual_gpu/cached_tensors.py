"""Tensors of a card that has ended, in the caches of functions.

A model that keeps masks in an `lru_cache` would find those of the last run in the next one, and not allocate its own.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch

from vramcast.virtual_gpu.storages import is_virtual_gpu

_DEPTH = 3


def forget_cached_tensors() -> None:
    """Empty every `functools.lru_cache` that holds a tensor of a virtual card."""
    for one in gc.get_objects():
        # type(), because asking a proxy object for its class may run code of its own.
        if type(one) is functools._lru_cache_wrapper and _holds_tensors(one):
            one.cache_clear()


def _holds_tensors(cached: Any) -> bool:
    """Results are referents of a cache with a limit; one without has them in a dict."""
    return any(_has_tensor(held, _DEPTH) for held in gc.get_referents(cached))


def _has_tensor(value: Any, depth: int) -> bool:
    """Only in plain containers: mappings of other kinds may load what they hold when they are looked through."""
    if isinstance(value, torch.Tensor):
        return is_virtual_gpu(value)
    if not depth or type(value) not in (dict, list, tuple):
        return False
    return any(_has_tensor(item, depth - 1) for item in (value.values() if type(value) is dict else value))
