"""Which kernels an operator runs: a function for each name, which gives the parts of its work.

An operator of PyTorch that is not listed and has tensors of one broadcast shape is taken as elementwise. Any other is
taken to read what it is given and to write as much as the largest of it. Both are named in `CostModel.unknown_ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families import (
    attention,
    convolution,
    elementwise,
    fused,
    gemm,
    indexing,
    norms,
    optimizers,
    quantized,
    reductions,
    spatial,
    special,
)
from vramcast.timing.costs.families.names import HOST_ONLY, POINTWISE
from vramcast.timing.costs.part import Family, Part
from vramcast.timing.costs.signature import Arguments


def _named(function: Callable[[str, Arguments, Card], list[Part]], name: str) -> Family:
    def costs(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
        return function(name, args, card)

    return costs


def _table() -> dict[str, Family]:
    table = {name: _named(elementwise.pointwise, name) for name in POINTWISE}
    for module in (
        gemm,
        convolution,
        elementwise,
        reductions,
        norms,
        attention,
        optimizers,
        quantized,
        indexing,
        spatial,
        special,
        fused,
    ):
        table.update(module.FAMILY)
    table |= {name: _named(reductions.reduce, name) for name in reductions.REDUCTIONS}
    table |= {name: _named(spatial.pool, name) for name in spatial.POOLS}
    table |= {name: _named(spatial.resample, name) for name in spatial.RESAMPLES}
    table |= {name: _named(spatial.sparse, name) for name in spatial.SPARSE}
    table |= {name: _named(reductions.loss, name) for name in reductions.LOSSES}
    table |= {name: _named(reductions.loss_backward, name) for name in reductions.LOSSES_BACKWARD}
    return table


_FAMILIES = _table()


def is_host_only(op: str, name: str) -> bool:
    return name in HOST_ONLY or op.startswith("profiler.")


def parts_of(op: str, args: Arguments, card: Card, *, tf32: bool, cudnn_tf32: bool) -> tuple[list[Part], bool]:
    """The parts of one call, and whether the operator is known."""
    name = op.split(".")[1] if op.count(".") >= 1 else op
    if is_host_only(op, name):
        return [], True
    family = _FAMILIES.get(name)
    if family is None and name.startswith("_foreach_"):
        family = partial(_call_named, optimizers.foreach, name)
    elif family is None and name.startswith("_fused_"):
        family = partial(_call_named, optimizers.fused, name)
    if family is not None:
        if any(tensor.sparse for tensor in args.tensors):
            return spatial.sparse(name, args, card), True
        return family(args, card, tf32, cudnn_tf32), True
    if op.startswith("aten.") and elementwise.is_broadcast(args.tensors):
        return elementwise.pointwise(name, args, card), False
    return elementwise.streamed(args, card), False


def _call_named(
    function: Callable[[str, Arguments, Card], list[Part]],
    name: str,
    args: Arguments,
    card: Card,
    tf32: bool,
    cudnn: bool,
) -> list[Part]:
    return function(name, args, card)
