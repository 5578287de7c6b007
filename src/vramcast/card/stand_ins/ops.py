"""Operators of packages that are not installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vramcast.base.errors import CannotPredict
from vramcast.card.device.context import active_card
from vramcast.card.dispatch.foreign import BENCHMARK_BUFFER_BYTES
from vramcast.card.dispatch.rules import as_kernel
from vramcast.card.dispatch.unknown import caller
from vramcast.card.ops import KERNELS

F = TypeVar("F", bound=Callable[..., Any])

_LIBRARIES: dict[str, torch.library.Library] = {}


class NotInStandIn(CannotPredict, NotImplementedError):
    """A program uses what a stand-in does not know."""

    def __init__(self, what: str, remedy: str = "leave it out for the prediction") -> None:
        super().__init__(f"{caller()}: {what} is not in the stand-in that vramcast has for it: {remedy}")


def op(schema: str) -> Callable[[F], F]:
    """Define an operator, as `flash_attn::forward(Tensor q) -> Tensor`. The function makes what the real one makes: its
    results, and what it takes while it runs. Compiled code calls it too, as torch calls operators it cannot see into.
    """
    namespace, _, signature = schema.partition("::")
    name = signature.partition("(")[0]

    def register(function: F) -> F:
        if f"{namespace}::{name}" in KERNELS:  # modules of a stand-in are imported anew for each card
            return function
        if namespace not in _LIBRARIES:
            _LIBRARIES[namespace] = torch.library.Library(namespace, "FRAGMENT")
        library = _LIBRARIES[namespace]
        library.define(signature)
        torch.library.register_fake(f"{namespace}::{name}", function, lib=library)
        KERNELS[f"{namespace}::{name}"] = as_kernel(function)
        return function

    return register


_tuned: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()


def autotuned(device: torch.device, *key: Any) -> None:
    """A Triton kernel with several configurations, called: they are timed once for each key."""
    card = active_card()
    known = _tuned.setdefault(card, set())
    if key not in known:
        known.add(key)
        torch.empty(BENCHMARK_BUFFER_BYTES, dtype=torch.uint8, device=device)


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a compiler works shapes out: sizes may be symbols then, and scratch memory is of no interest."""
    return isinstance(tensor, FakeTensor)


def dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where elements of its last dimension lie apart."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def multiprocessors(tensor: torch.Tensor) -> int:
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
