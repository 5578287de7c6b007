"""What lies in nested lists, tuples and dictionaries: batches, optimizer state, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


def all_of(kind: type[_Kind], value: Any) -> Iterator[_Kind]:
    """Every `kind` in `value`, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from all_of(kind, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from all_of(kind, item)


def stored(tensor: Any) -> Iterator[Any]:
    """The tensors that hold what a tensor stands for: of one that is quantized its codes and scales, of others itself.
    A DTensor is known by itself."""
    if hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "placements"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from stored(getattr(tensor, name))
    else:
        yield tensor
