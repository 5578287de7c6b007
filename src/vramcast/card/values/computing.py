"""`run --compute-values`: every op is computed on the CPU beside the run without data.

What the program reads is then what it would read on a card with other random numbers: how many steps an adaptive
solver takes, how long a learned span is. It takes as long as the same steps on the CPU, and as much memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import block_of
from vramcast.card.values import known_values

if TYPE_CHECKING:
    from vramcast.card.dispatch.known_calls import KnownCall
    from vramcast.card.dispatch.modes import DispatchMode, Handler


def beside(mode: DispatchMode, func: Any, handler: Handler) -> Handler:
    """The handler of an op, which computes the op too where the handler has not done so."""
    written = [n for n, a in enumerate(func._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]

    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None) -> Any:
        real = known_values.real_arguments(args, kwargs)
        out = handler(func, args, kwargs, known)
        if real is None:
            return out
        changed = [argument for place in written if place < len(args) for argument in _tensors(args[place])]
        if not any(_is_unknown(tensor) for tensor in (*_tensors(out), *changed)):
            return out
        if not written:
            known_values.propagate(mode, func, args, kwargs, out)
        else:
            _compute_in_place(mode, func, real, out, changed, written)
        if any(_is_unknown(tensor) for tensor in (*_tensors(out), *changed)):
            mode.machine.note_not_computed(func)
        return out

    return run


def _compute_in_place(
    mode: DispatchMode,
    func: Any,
    real: tuple[list[Any], dict[str, Any]],
    out: Any,
    changed: list[torch.Tensor],
    written: list[int],
) -> None:
    """For an op that writes into arguments: their contents as they were are in `real`, and are written to."""
    content = known_values.computed(mode, func, *real, drawn_for=changed)
    if content is None and func._schema.returns:
        return
    contents = [argument for place in written if place < len(real[0]) for argument in _tensors(real[0][place])]
    for virtual, actual in zip(changed, contents, strict=True):
        block = block_of(virtual)
        if block is not None and block.nbytes == actual.untyped_storage().nbytes():
            block.values, block.recipe = actual.untyped_storage(), None
    fresh = [tensor for tensor in _tensors(out) if _is_unknown(tensor)]
    if fresh:
        known_values.learn_all(_tensors(out), _tensors(content))


def _is_unknown(tensor: torch.Tensor) -> bool:
    block = block_of(tensor) if tensor.is_meta and tensor.layout is torch.strided else None
    return block is not None and block.values is None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, (list, tuple)) else []
