"""The cache that tells what an op makes of fake tensors: its keys, put together sooner.

A key holds all that is known of each tensor. torch writes it down field by field, sizes and strides number by number,
which takes longer than to look the answer up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

_PLAIN = frozenset((
    int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
))  # fmt: skip


def install(put: Patches) -> None:
    put.set(FakeTensorMode, "_prep_args_for_hash", _quicker(FakeTensorMode._prep_args_for_hash))


def _quicker(original: Callable[..., None]) -> Callable[..., None]:
    """What it does not know is the original's."""

    @functools.wraps(original)
    def prepare(mode: Any, result: list[Any], args: Iterable[Any], state: Any, hashed_by_id: list[Any]) -> None:
        kind = type(args)
        if kind in (list, tuple):
            result += (kind, len(args))  # type: ignore[arg-type]
        elif isinstance(args, dict):
            result += (kind, len(args))
            prepare(mode, result, args.keys(), state, hashed_by_id)
            args = args.values()
        for arg in args:
            kind = type(arg)
            if kind in _PLAIN:
                result += (kind, arg)
            elif kind in (list, tuple):
                prepare(mode, result, arg, state, hashed_by_id)
            elif kind is FakeTensor and _is_ordinary(arg, mode):
                result.append(_known_of(arg))
            else:
                original(mode, result, (arg,), state, hashed_by_id)

    return prepare


def _is_ordinary(tensor: FakeTensor, mode: Any) -> bool:
    return (
        tensor.fake_mode is mode and tensor.constant is None and tensor.layout is torch.strided
        and not tensor._has_symbolic_sizes_strides
    )  # fmt: skip


def _known_of(tensor: FakeTensor) -> tuple[Any, ...]:
    return (
        FakeTensor, tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.storage_offset(),
        tensor.untyped_storage().nbytes(), tensor.requires_grad, tensor.is_quantized, tensor.is_conj(), tensor.is_neg(),
        tensor.is_inference(),
    )  # fmt: skip
