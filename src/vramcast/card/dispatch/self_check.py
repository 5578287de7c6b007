"""VRAMCAST_CHECK=1: after every op, is what it was given and what it hands back booked at the size it has?

For vramcast's own tests. Off, it costs nothing: another class of mode is used then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vramcast.base.errors import CannotPredict
from vramcast.card.dispatch.modes import REAL, DispatchMode
from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, Block, dense_parts
from vramcast.card.dispatch.unknown import UnknownKernel, caller

VARIABLE = "VRAMCAST_CHECK"


class BooksDiffer(UnknownKernel):
    """An op left a tensor whose memory is not booked as it is: a mistake of vramcast's."""


def dispatch_mode() -> type[DispatchMode]:
    return CheckedDispatchMode if os.environ.get(VARIABLE) == "1" else DispatchMode


class CheckedDispatchMode(DispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            device = self.device_of(args, kwargs or {})
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.ledger.open and out is not NotImplemented:
            with torch._C.DisableTorchFunction():
                self._check(func, (args, kwargs), out, device)
        return out

    def _check(self, func: Any, given: Any, out: Any, device: int) -> None:
        for tensor in _tensors(given):
            trouble = _trouble(tensor, must_have_block=False)
            if trouble:
                raise self._differs(func, f"leaves an argument {trouble}")
        for tensor in _tensors(out):
            trouble = _trouble(tensor, must_have_block=device != REAL)
            if trouble:
                raise self._differs(func, f"hands back a tensor {trouble}")

    def _differs(self, func: Any, what: str) -> CannotPredict:
        error = BooksDiffer(f"{func._schema.name}, called at {caller()}, {what}")
        return self.machine.report_unknown(error)  # type: ignore[no-any-return]


def _trouble(tensor: torch.Tensor, *, must_have_block: bool) -> str:
    for part in dense_parts(tensor):
        if not part.is_meta:
            continue
        storage = part.untyped_storage()
        nbytes = storage.nbytes()
        block: Block | None = storage.__dict__.get(ATTRIBUTE)
        if block is None:
            if must_have_block:
                return f"of {nbytes} bytes of which none are booked ({_words(tensor)})"
        elif block.nbytes != nbytes:
            return f"of {nbytes} bytes of which {block.nbytes} are booked ({_words(tensor)})"
        elif block.device == GPU and nbytes and block.block_id < 0 and block.ledger is not None and block.ledger.open:
            return f"of {nbytes} bytes that the allocator was not asked for ({_words(tensor)})"
    return ""


def _words(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, FakeTensor):
        return  # belongs to somebody who works shapes out, and takes no memory
    if isinstance(value, torch.Tensor):
        if is_traceable_wrapper_subclass(value):  # its memory is that of the tensors in it
            names, _ = value.__tensor_flatten__()
            for name in names:
                yield from _tensors(getattr(value, name))
        else:
            yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
