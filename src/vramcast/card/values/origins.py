"""What a layer's numbers depend on: the layer, its weights and the data that reached it.

A layer that is evaluated twice on the same data gives the same made-up numbers, so that a solver which evaluates a
network at nearby points (an adaptive ODE solver, a line search, a fixed-point iteration) sees a function that does not
jump about. Two batches through one network give different numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.ledger import WEIGHTS, Ledger
from vramcast.card.dispatch.storages import ATTRIBUTE, Block

if TYPE_CHECKING:
    from vramcast.card.dispatch.known_calls import KnownCall

_Tensor = torch.Tensor
_strided = torch.strided
_BITS = 1024
"""Origins that are told apart; where there are more they share a bit."""

Origin = tuple[int, int, int, tuple[int, ...]]
"""The op and the module that made a tensor, the data that went into it, and the weights."""


class Origins:
    """Notes on each new tensor which data went into it (`Block.data`) and which op made it (`Block.origin`).

    Data is a set of bits: one for each tensor that came from the host or was drawn at random in this step.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kind_of = ledger.builder.kind_if_said
        self._fresh = 0
        self._draws: dict[int, bool] = {}

    def begin_step(self) -> None:
        self._fresh = 0

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, known: KnownCall | None = None
    ) -> None:
        """Called after an op that made `out`, or wrote into it. On the hot path."""
        if known is not None and known.places is not None:
            data, weights = self._of_tensors(args, known.places)
        else:
            data, weights = self._of_arguments(args)
            if kwargs:
                more, others = self._of_arguments(kwargs.values())
                data, weights = data | more, weights + others
        draws = self._draws.get(id(func))
        if draws is None:
            draws = self._draws[id(func)] = torch.Tag.nondeterministic_seeded in func.tags
        if draws:
            data |= self._new_bit()
        origin = (id(func), self._ledger.module, data, weights)
        for tensor in (out,) if isinstance(out, _Tensor) else out if isinstance(out, (list, tuple)) else ():
            block = _block(tensor)
            if block is not None:
                block.data |= data
                block.origin = origin

    def _of_tensors(self, args: tuple[Any, ...], places: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """The same where all tensors are known to be strided and without data."""
        data = 0
        weights: tuple[int, ...] = ()
        for place in places:
            block = args[place].untyped_storage().__dict__.get(ATTRIBUTE)
            if block is not None:
                data |= block.data
                if self._kind_of(block.block_id) == WEIGHTS:
                    weights += (block.block_id,)
        return data, weights

    def _of_arguments(self, args: Iterable[Any]) -> tuple[int, tuple[int, ...]]:
        data = 0
        weights: tuple[int, ...] = ()
        for arg in args:
            if isinstance(arg, _Tensor):
                if arg.is_meta:
                    if arg.layout is not _strided:
                        continue
                    block = arg.untyped_storage().__dict__.get(ATTRIBUTE)
                    if block is not None:
                        data |= block.data
                        if self._kind_of(block.block_id) == WEIGHTS:
                            weights += (block.block_id,)
                elif arg.numel() > 1:
                    data |= self._new_bit()
            elif isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], _Tensor):
                more, others = self._of_arguments(arg)
                data, weights = data | more, weights + others
        return data, weights

    def _new_bit(self) -> int:
        self._fresh += 1
        return 1 << self._fresh % _BITS


def _block(tensor: Any) -> Block | None:
    if not isinstance(tensor, _Tensor) or not tensor.is_meta or tensor.layout is not _strided:
        return None
    return tensor.untyped_storage().__dict__.get(ATTRIBUTE)
