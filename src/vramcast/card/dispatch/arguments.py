"""What an op and its arguments say before it runs: where they lie, and what has to be done with them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, Block, block_of, sparse_parts

_META = torch.device("meta")
_Tensor = torch.Tensor


@functools.cache
def has_own_dispatch(kind: type) -> bool:
    """A subclass that takes ops apart itself (nested, distributed, quantized tensors): ops on its parts come here."""
    own = getattr(kind, "__torch_dispatch__", None)
    return own is not None and own is not torch._C._disabled_torch_dispatch_impl


def is_composite(func: Any) -> bool:
    """A function of other ops on every device; some have one for those devices alone that have no kernel."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU"))


def cards_of(values: Iterable[Any]) -> Iterator[int]:
    """The cards that these arguments lie on, in their order."""
    for value in values:
        if isinstance(value, _Tensor):
            block = booked_block(value)
            if block is not None and block.device == GPU:
                yield block.card
        elif isinstance(value, (list, tuple)):
            yield from cards_of(value)


def goes_between_cards(func: Any) -> bool:
    """Copies, and functions of lists, whose slow path takes one tensor after the other."""
    name = func._schema.name
    return name in ("aten::copy_", "aten::_to_copy") or name.startswith("aten::_foreach_")


def refuse_overwritten(args: tuple[Any, ...]) -> None:
    for value in tensors_of(list(args)):
        block = block_of(value) if isinstance(value, _Tensor) and value.is_meta else None
        if block is not None and block.overwritten:
            raise RuntimeError(block.overwritten)


def has_sparse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for value in (*args, *kwargs.values()):
        if isinstance(value, _Tensor):
            if value.layout is not torch.strided:
                return True
        elif isinstance(value, (list, tuple)) and any(
            isinstance(item, _Tensor) and item.layout is not torch.strided for item in value
        ):
            return True
    return False


def tensors_of(outs: list[Any]) -> list[torch.Tensor]:
    return [tensor for out in outs for tensor in (out if isinstance(out, (list, tuple)) else (out,))]


def wants_meta(kwargs: dict[str, Any]) -> bool:
    return kwargs.get("device") == _META


def booked_block(tensor: torch.Tensor) -> Block | None:
    """As `block_of`, of sparse tensors too."""
    if not tensor.is_meta:
        return None
    if tensor.layout is not torch.strided:
        parts = sparse_parts(tensor)
        return booked_block(parts[0]) if parts else None
    return tensor.untyped_storage().__dict__.get(ATTRIBUTE)
