"""CUDA graphs of compiled code (mode="reduce-overhead"), which torch keeps in trees that share one private pool.

torch's own code for the trees runs: a function's first call runs in the pool, the second is recorded there with copies
of its inputs, and later calls replay the recording, which allocates nothing. Replaced is what it asks of C++: tensors
at an address that own no memory, and the state of the pool.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, Block, attach
from vramcast.card.dispatch.unknown import UnknownKernel

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches


def install(put: Patches, machine: Machine) -> None:
    stand_ins = {
        "_construct_storage_from_data_pointer": _storage_at,
        "_construct_CUDA_Tensor_From_Storage_And_Metadata": _tensor_in,
        "_tensors_data_ptrs_at_indices_equal": _same_addresses,
        "_free_And_Remove_DeleterFn": _free,
        "_set_storage_access_error_msg": lambda tensor, message: None,  # its storage is told the same
        "_set_storage_data_ptr_access_error_msg": _mark_overwritten,
        "_cuda_checkPoolLiveAllocations": lambda device, pool, live: True,
        "_has_Standard_Deleter": lambda storage: True,
        "_cuda_getCheckpointState": lambda device, pool: pool,
        "_cuda_setCheckpointPoolState": _restore_pool(machine),
        "_cuda_get_conv_benchmark_empty_cache": lambda: True,
        "_cudnn_set_conv_benchmark_empty_cache": lambda enable: None,
    }
    for name, function in stand_ins.items():
        put.set(torch._C, name, function)
    _mark_outputs(put)


def _mark_outputs(put: Patches) -> None:
    """The trees ask for the storage of every output: autograd then adds nothing to it in place."""
    from torch._inductor.cudagraph_trees import StorageWeakRefWrapper

    original = StorageWeakRefWrapper.__init__

    @functools.wraps(original)
    def __init__(self: Any, inp: Any, *args: Any, **kwargs: Any) -> None:
        original(self, inp, *args, **kwargs)
        storage = inp.untyped_storage() if isinstance(inp, torch.Tensor) else inp
        block: Block | None = getattr(storage, ATTRIBUTE, None)
        if block is not None:
            block.asked_for = True

    put.set(StorageWeakRefWrapper, "__init__", __init__)


def _storage_at(address: int, device: Any, nbytes: int) -> torch.UntypedStorage:
    """Memory that a recording wrote to: it belongs to the pool, not to this storage."""
    storage = torch.UntypedStorage(nbytes, device="meta")
    attach(storage, Block(None, GPU, nbytes, -1, address))
    return storage


def _tensor_in(metadata: dict[str, Any], storage: torch.UntypedStorage) -> torch.Tensor:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        tensor = torch.empty(0, dtype=metadata["dtype"], device="meta")
        return tensor.set_(storage, metadata["storage_offset"], metadata["size"], metadata["stride"])


def _same_addresses(tensors: Sequence[Any], addresses: Sequence[int | None], indices: Sequence[int]) -> bool:
    return all(tensors[i].data_ptr() == addresses[i] for i in indices)


def _block_at(weak_pointer: int) -> Block | None:
    return getattr(torch.UntypedStorage._new_with_weak_ptr(weak_pointer), ATTRIBUTE, None)


def _mark_overwritten(weak_pointer: int, message: str) -> None:
    block = _block_at(weak_pointer)
    if block is not None and block.ledger is not None:
        block.overwritten = message
        block.ledger.overwritten_seen = True


def _free(weak_pointer: int) -> None:
    """The memory of a storage whose owner may no longer use it: a new iteration begins."""
    block = _block_at(weak_pointer)
    if block is not None and block.ledger is not None and block.block_id >= 0:
        number, block.block_id = block.block_id, -1
        block.ledger.release(number, block.address)


def _restore_pool(machine: Machine) -> Any:
    def restore(device: int, pool: Any, stale: Any, live: Any) -> None:
        raise machine.report_unknown(
            UnknownKernel(
                "a function with mode='reduce-overhead' is recorded again in the middle of a replay: what the pool of "
                "its CUDA graphs takes then is not known.\n"
                "torch._inductor.config.triton.cudagraphs = False predicts the same code without CUDA graphs."
            )
        )

    return restore
