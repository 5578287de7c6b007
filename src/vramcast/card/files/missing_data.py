"""Which tensors hold no data here, how many bytes of a file they would be, and what is known of them all the same."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import HOST, UNKNOWN_CONTENT, Block, attach, block_of, known_values
from vramcast.card.values import known_values as values

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine


def is_without_data(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor):
        return False
    with torch._C.DisableTorchFunction():
        if tensor.is_meta:
            return block_of(tensor) is not None
        if tensor.layout is not torch.strided:
            return False
        return hasattr(tensor.untyped_storage(), UNKNOWN_CONTENT)


def holds_virtual(obj: Any) -> bool:
    """Whether pickling `obj` would meet a tensor without (real) data."""
    return next(holes_in(obj), None) is not None


def holes_in(obj: Any) -> Iterator[int]:
    """Bytes of each storage without data that pickling `obj` would meet."""
    scan = _Scan()
    with contextlib.suppress(Exception):  # whatever cannot be pickled is torch.save's to complain about
        scan.dump(obj)
    yield from scan.holes.values()


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


class _Scan(pickle.Pickler):
    def __init__(self) -> None:
        super().__init__(_Nowhere(), protocol=pickle.HIGHEST_PROTOCOL)
        self.holes: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        return "storage" if torch.is_storage(obj) or isinstance(obj, torch.UntypedStorage) else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            if is_without_data(obj):
                with torch._C.DisableTorchFunction():
                    storage = obj.untyped_storage()
                    self.holes[storage._cdata] = storage.nbytes()
            return (int, ())
        return NotImplemented


def known_content(tensor: torch.Tensor) -> bytes | None:
    """What a tensor holds, where that is known."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        known = tensor.detach() if not is_without_data(tensor) else known_values(tensor)
        if known is None:
            return None
        whole = known.contiguous().reshape(-1)
        return bytes(whole.view(torch.uint8).numpy()) if whole.numel() else b""


def keeps_values(numel: int, dtype: torch.dtype) -> bool:
    floating = dtype.is_floating_point or dtype.is_complex
    return numel <= (values.LIMIT_FLOAT if floating else values.LIMIT_EXACT)


def without_data(machine: Machine, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor in host memory that was never filled."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        tensor = torch.empty(shape, dtype=dtype, device="meta")
        storage = tensor.untyped_storage()
        attach(storage, Block(None, HOST, storage.nbytes(), -1, id(storage)))
    return tensor
