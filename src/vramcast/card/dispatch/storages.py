"""What a storage without data stands for: memory of the virtual card, or host memory that was never filled.

Every tensor inside the virtual GPU that carries no data is a meta tensor. Its storage object gets one attribute,
a `Block`, which dies with the storage: its `__del__` is the free. Nothing here holds a reference to a tensor,
so frees happen exactly when reference counts say so, as on CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.device.one_card import check_ordinal

if TYPE_CHECKING:
    from vramcast.card.dispatch.ledger import Ledger
    from vramcast.card.values.later import Later
    from vramcast.trace.host import HostLog

GPU = 0
HOST = 1

ATTRIBUTE = "_vramcast_block"

HOST_ATTRIBUTE = "_vramcast_host"
"""Set on a real CPU storage that counts as memory of the computer."""

UNKNOWN_CONTENT = "_vramcast_unknown_content"
"""Set on a real CPU storage that stands for contents only a real run would have."""


class HostBlock:
    """Memory of the computer that a storage stands for; it dies with the storage."""

    __slots__ = ("log", "number")

    def __init__(self, log: HostLog, nbytes: int, where: int, kind: str | None) -> None:
        self.log = log
        self.number = log.made(nbytes, where, kind)

    def __del__(self) -> None:
        self.log.freed(self.number)


class Block:
    """One storage without data. `values` is a real CPU storage of the same size where the content is known.

    `recipe`: how the content came about (see guesses.py), where it is not known but can be made up.
    `host`: what it takes of the computer's memory, where it lies there and is counted.
    `data`, `origin`: which data went into it, and what made it (see origins.py).
    `shift`: the bias of the layer that computed it, where that is far from zero (see biases.py).
    `asked_for`: Python code of torch's asked for the storage object, which a real card's tensor then has from there on.
    `overwritten`: what is said to whoever uses it, once a CUDA graph may have written over it.
    `card`: which of the machine's cards it lies on, where it does.
    `chosen`: its values are indices that were chosen by assumed numbers.
    """

    __slots__ = (
        "address", "asked_for", "block_id", "card", "chosen", "data", "device", "host", "ledger", "nbytes", "origin",
        "overwritten", "recipe", "shift", "values",
    )  # fmt: skip

    def __init__(
        self, ledger: Ledger | None, device: int, nbytes: int, block_id: int, address: int, card: int = 0
    ) -> None:
        self.ledger = ledger
        self.device = device
        self.nbytes = nbytes
        self.block_id = block_id
        self.address = address
        self.values: torch.UntypedStorage | Later | None = None
        self.recipe: Any = None
        self.host: HostBlock | None = None
        self.data = 0
        self.origin: Any = None
        self.shift: Any = None
        self.asked_for = self.chosen = False
        self.overwritten = ""
        self.card = card

    def __del__(self) -> None:
        if self.ledger is not None and self.block_id >= 0:
            self.ledger.release(self.block_id, self.address)


def block_of(tensor: torch.Tensor) -> Block | None:
    """The block behind a meta tensor; None for a real tensor and for a plain meta tensor of the user's own."""
    try:
        return getattr(tensor.untyped_storage(), ATTRIBUTE, None)
    except (NotImplementedError, RuntimeError):  # sparse and other storage-less tensors
        return None


def block_number(tensor: torch.Tensor) -> int | None:
    block = block_of(tensor)
    return None if block is None else block.block_id


def is_virtual_gpu(tensor: torch.Tensor) -> bool:
    if not tensor.is_meta:
        return False
    if tensor.layout is not torch.strided:
        parts = sparse_parts(tensor)
        return bool(parts) and is_virtual_gpu(parts[0])
    block = block_of(tensor)
    return block is not None and block.device == GPU


def sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors a sparse one is made of."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor's bytes lie in: itself, or the dense tensors that a sparse one is made of."""
    return [tensor] if tensor.layout is torch.strided else sparse_parts(tensor)


def stand_ins(ledger: Ledger) -> dict[str, Any]:
    """Methods of UntypedStorage that a program may use on memory of the card: where it lies, and its size."""
    storage_type = torch.UntypedStorage
    data_ptr, resize_ = storage_type.data_ptr, storage_type.resize_
    new: Any = storage_type.__new__

    def where(storage: torch.UntypedStorage) -> int:
        block: Block | None = storage.__dict__.get(ATTRIBUTE)
        return data_ptr(storage) if block is None else block.address

    def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        block: Block | None = storage.__dict__.get(ATTRIBUTE)
        if block is not None and size != block.nbytes:
            ledger.resize(block, size)
        resize_(storage, size)
        return storage

    def make(cls: type[torch.UntypedStorage], *args: Any, device: Any = None, **kwargs: Any) -> torch.UntypedStorage:
        """torch.UntypedStorage(size, device="cuda")."""
        kind = None if device is None else torch.device(device)
        if kind is None or kind.type != "cuda":
            real: torch.UntypedStorage = new(cls, *args, **({} if device is None else {"device": device}), **kwargs)
            return real
        ledger.use_card(check_ordinal(kind))
        storage: torch.UntypedStorage = new(cls, *args, device="meta", **kwargs)
        ledger.book(storage, GPU)
        return storage

    return {"data_ptr": where, "resize_": resize, "__new__": staticmethod(make)}


def attach(storage: torch.UntypedStorage, block: Block) -> None:
    setattr(storage, ATTRIBUTE, block)


def known_content(block: Block) -> torch.UntypedStorage | None:
    """What a block is known to hold; worked out now where it waits."""
    content = block.values
    if content is not None and not isinstance(content, torch.UntypedStorage):
        # A copy: the program may write to it, and what else follows from it may wait still.
        worked_out = content.cached
        content = block.values = None if worked_out is None else worked_out.clone()
    return content


def is_known(tensor: torch.Tensor) -> bool:
    """Whether `known_values` would give the content, which may wait."""
    block = block_of(tensor)
    return block is not None and block.values is not None


def known_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """A real CPU tensor with this tensor's content, sharing memory with the block's known values; or None."""
    block = block_of(tensor)
    content = None if block is None else known_content(block)
    if content is None:
        return None
    view: Any = torch.empty(0, dtype=tensor.dtype, device="cpu")
    view.set_(content, tensor.storage_offset(), tensor.size(), tensor.stride())
    return view  # type: ignore[no-any-return]
