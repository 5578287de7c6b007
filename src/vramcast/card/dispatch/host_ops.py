"""Ops on the host between parameters that carry no data and ordinary CPU tensors: the result carries none either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import HOST, UNKNOWN_CONTENT, Block, attach
from vramcast.card.values import reads

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine

# Rules about reading and moving data hold on the host too; all others say what CUDA kernels allocate.
_RULES_FOR_HOST = (".data_reads", ".copies", ".sparse", ".collectives")

_LARGEST_MADE_UP = 1 << 24


def holds_on_host(kernel: Any) -> bool:
    return str(kernel.__module__).endswith(_RULES_FOR_HOST)


def holds_for_data(kernel: Any) -> bool:
    """Whether the rule is also one for ordinary CPU tensors."""
    return str(kernel.__module__).endswith(".collectives")


def host_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with every real tensor replaced by one without data."""
    return tuple(_emptied(arg) for arg in args), {name: _emptied(value) for name, value in kwargs.items()}


def _emptied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_meta else empty_twin(value)
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return [_emptied(item) for item in value]
    return value


def empty_twin(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor.to("meta")
    twin = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    storage = twin.untyped_storage()
    block = Block(None, HOST, storage.nbytes(), -1, id(storage))
    if tensor.untyped_storage().nbytes() == block.nbytes:
        block.values = tensor.untyped_storage()
    attach(storage, block)
    return twin


def run_for_real(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """For an op that cannot run without data: run it on made-up numbers, and keep the shapes of what comes out."""
    made_up = torch.utils._pytree.tree_map_only(torch.Tensor, _made_up, (args, kwargs))
    out = func(*made_up[0], **made_up[1])
    return torch.utils._pytree.tree_map_only(torch.Tensor, empty_twin, out)


def _made_up(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() > _LARGEST_MADE_UP:
        raise NotImplementedError("too large to run on the host")
    content = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    return content.normal_() if tensor.dtype.is_floating_point or tensor.dtype.is_complex else content.zero_()


def write_for_real(
    machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: Sequence[torch.Tensor]
) -> Any:
    """An op that writes into real CPU tensors what follows from tensors without data."""
    for target in written:
        if not target.is_meta:
            setattr(target.untyped_storage(), UNKNOWN_CONTENT, True)

    def content(tensor: torch.Tensor) -> torch.Tensor:
        return reads.read(machine, tensor, "written on the host") if tensor.is_meta else tensor

    real = torch.utils._pytree.tree_map_only(torch.Tensor, content, (args, kwargs))
    return func(*real[0], **real[1])
