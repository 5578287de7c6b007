"""Copies between host and card, and between dtypes."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.storages import GPU, HOST, is_virtual_gpu
from vramcast.card.ops.registry import Call, kernel
from vramcast.card.values import known_values as values
from vramcast.card.values import reads

LARGEST_REAL_READ_BYTES = 1 << 20
"""Above this a copy to the host stays without data: nobody reads a MiB of unknown numbers."""


@kernel("aten::_to_copy")
def to_copy(call: Call) -> Any:
    source = call.args[0]
    device = call.kwargs.get("device")
    if device is not None and device.type == "cpu" and source.is_meta:
        return read_back(call, source, call.kwargs.get("dtype") or source.dtype)
    out = call.run()
    if call.device == GPU and source.is_meta is False:
        call.mode.machine.note_input(out)
    return out


def read_back(call: Call, source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy on the host, with the contents that every read is given; data-free where it is huge, or a part of the run
    (weights, what autograd saves) that hardly anybody reads."""
    ledger = call.mode.ledger
    if is_virtual_gpu(source) and not torch.ops.aten.is_non_overlapping_and_dense(source):
        call.scratch(source.numel() * source.element_size())  # a dense copy is made on the card first
    content = reads.known(call.mode.machine, source)
    large = source.numel() * dtype.itemsize > LARGEST_REAL_READ_BYTES or not is_virtual_gpu(source)
    if (ledger.host_kind is not None or (large and content is None)) and not _is_gradient_with_data():
        out = torch.empty_like(source, dtype=dtype, device="meta")
        call.mode.adopt_tensor(out, HOST)
        if content is not None:
            values.learn(out, content.to(dtype, copy=True))
        return out
    if content is not None:
        return content.to(dtype, copy=True)
    content = reads.read(call.mode.machine, source, "copied to the host")
    out = torch.empty_like(source, dtype=dtype, device="cpu").copy_(content)
    ledger.count_real(out.untyped_storage())
    return out


def _is_gradient_with_data() -> bool:
    """A backward pass hands the gradient of a tensor that has data on the host on: autograd wants data there too."""
    node: Any = torch._C._current_autograd_node()
    if node is None or not node.next_functions:
        return False
    following, place = node.next_functions[0]
    return following is not None and following._input_metadata[place].device.type == "cpu"


@kernel("aten::copy_")
def copy_(call: Call) -> Any:
    target, source = call.args[0], call.args[1]
    non_blocking = bool(call.argument("non_blocking"))
    if call.device == GPU and not is_virtual_gpu(target):
        call.scratch(*_staged_to_host(target, source, non_blocking))
    if not target.is_meta:  # device to host, into a real tensor
        return target.copy_(reads.read(call.mode.machine, source, "copied to the host"))
    if call.device == GPU and source.numel() > 1 and is_virtual_gpu(target) and not is_virtual_gpu(source):
        call.scratch(*_staged_to_card(target, source, non_blocking))
    values.update_in_place(call.mode, call.func, call.args, call.kwargs)
    return target


def needs_kernel(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> bool:
    """Whether the card does more for a copy than to move bytes."""
    if not is_virtual_gpu(target):
        return is_virtual_gpu(source) and bool(_staged_to_host(target, source, non_blocking))
    if not is_virtual_gpu(source):
        return bool(_staged_to_card(target, source, non_blocking))
    return not _same_layout(target, source)


def _staged_to_host(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> list[int]:
    """Copies that the card makes on the way (copy_kernel_cuda in Copy.cu): dense, and in the target's dtype where the
    copy does not block."""
    if _same_layout(target, source):
        return []
    convert = non_blocking and target.dtype != source.dtype
    size = source.numel() * (target if convert else source).element_size()
    return [size] * (convert + (not source.is_contiguous()))


def _staged_to_card(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> list[int]:
    """Likewise. A copy that blocks is converted on the host."""
    if _same_layout(target, source) or (target.is_contiguous() and not (non_blocking and target.dtype != source.dtype)):
        return []
    return [target.numel() * (source if non_blocking else target).element_size()]


def _same_layout(target: torch.Tensor, source: torch.Tensor) -> bool:
    """One memcpy does it."""
    if target.dtype != source.dtype or target.size() != source.size():
        return False
    return (target.is_contiguous() and source.is_contiguous()) or (
        target.stride() == source.stride() and bool(torch.ops.aten.is_non_overlapping_and_dense(source))
    )


@kernel("aten::_pin_memory", "aten::pin_memory")
def pin_memory(call: Call) -> Any:
    return call.args[0]


@kernel("aten::record_stream")
def record_stream(call: Call) -> Any:
    return None


@kernel("aten::is_set_to")
def is_set_to(call: Call) -> bool:
    """Whether two tensors are the same view of the same storage."""
    one, other = call.args[0], call.args[1]
    same = one.untyped_storage()._cdata == other.untyped_storage()._cdata
    places = [(tensor.storage_offset(), tensor.size(), tensor.stride()) for tensor in (one, other)]
    return same and places[0] == places[1]


@kernel("aten::is_same_size")
def is_same_size(call: Call) -> bool:
    return bool(call.args[0].size() == call.args[1].size())


@kernel("aten::set_.source_Storage", "aten::set_.source_Tensor", "aten::set_.source_Storage_storage_offset")
def set_(call: Call) -> Any:
    """A storage that is too small for the sizes it is given grows."""
    out = call.func(*call.args, **call.kwargs)
    call.mode.adopt_tensor(out, call.device)
    return out
