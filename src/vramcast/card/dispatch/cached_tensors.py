"""Tensors of a card that has ended, in the caches of functions.

A model that keeps masks in an `lru_cache` would find those of the last run in the next one, and not allocate its own.
Caches are looked for among the functions and classes of modules; a module is looked through again when it has grown.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from vramcast.card.dispatch.storages import is_virtual_gpu

_DEPTH = 3
_OURS = ("vramcast", "torch")
"""Packages whose caches hold no tensor of a model."""

_sizes: dict[str, int] = {}
"""Names in each module when it was looked through."""
_caches: dict[int, functools._lru_cache_wrapper[Any]] = {}
_misses: dict[int, int] = {}
"""Misses of each cache when it was last looked at; as many now means that nothing new is in it."""


def forget_cached_tensors() -> None:
    """Empty every `functools.lru_cache` of a module's function or method that holds a tensor of a virtual card."""
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] not in _OURS:
            names = vars(module)
            if _sizes.get(name) != len(names):
                _sizes[name] = len(names)
                _caches.update((id(cache), cache) for cache in _caches_in(list(names.values()), seen))
    for key, cache in _caches.items():
        misses = cache.cache_info().misses
        if misses != _misses.get(key, 0):
            _misses[key] = misses
            if _holds_tensors(cache):
                cache.cache_clear()
                _misses[key] = 0


def _caches_in(values: list[Any], seen: set[int]) -> Iterator[functools._lru_cache_wrapper[Any]]:
    """`seen`: classes that were looked through, as they are imported from module to module."""
    # type(), because asking a proxy object for its class may run code of its own.
    for value in values:
        if issubclass(type(value), type):
            if id(value) in seen:
                continue
            seen.add(id(value))
            inside = [
                getattr(member, "__func__", member) for member in vars(value).values() if type(member) in _METHODS
            ]
            yield from (member for member in inside if type(member) is functools._lru_cache_wrapper)
        elif type(value) is functools._lru_cache_wrapper:
            yield value


_METHODS = (functools._lru_cache_wrapper, staticmethod, classmethod)


def _holds_tensors(cached: Any) -> bool:
    """Results are referents of a cache with a limit; one without has them in a dict."""
    return any(_has_tensor(held, _DEPTH) for held in gc.get_referents(cached))


def _has_tensor(value: Any, depth: int) -> bool:
    """Whether plain containers hold a tensor: mappings of other kinds may load their contents when they are
    searched."""
    if isinstance(value, torch.Tensor):
        return is_virtual_gpu(value)
    if not depth or type(value) not in (dict, list, tuple):
        return False
    return any(_has_tensor(item, depth - 1) for item in (value.values() if type(value) is dict else value))
