"""Copies between host and card, and between dtypes."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu import values
from vramcast.virtual_gpu.kernels.registry import Call, kernel
from vramcast.virtual_gpu.storages import GPU, HOST, block_of, is_virtual_gpu, known_values

LARGEST_REAL_READ_BYTES = 1 << 28
"""Above this a copy to the host stays without data: nobody reads 256 MiB of unknown numbers."""


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
    """A copy on the host: real where the contents are known, zeros where they are not, data-free where huge."""
    content = known_values(source)
    if content is not None:
        return content.to(dtype, copy=True)
    if not is_virtual_gpu(source) or source.numel() * dtype.itemsize > LARGEST_REAL_READ_BYTES:
        out = torch.empty_like(source, dtype=dtype, device="meta")
        call.mode.adopt_tensor(out, HOST)
        return out
    call.unknown_read("copied to the host", "zeros")
    return torch.zeros(source.shape, dtype=dtype)


@kernel("aten::copy_")
def copy_(call: Call) -> Any:
    target, source = call.args[0], call.args[1]
    if not target.is_meta:  # device to host, into a real tensor
        content = known_values(source)
        if content is None:
            call.unknown_read("copied to the host", "zeros")
            target.zero_()
        else:
            target.copy_(content)
        return target
    # A host tensor of another dtype is converted on the host first; only a target that is not contiguous
    # needs a staging copy on the card (copy_requires_temporaries in Copy.cu).
    from_host = call.device == GPU and not source.is_meta and source.numel() > 1
    if from_host and target.stride() != source.stride() and not target.is_contiguous():
        call.scratch(target.numel() * target.element_size())
    values.update_in_place(call.mode, call.func, call.args, call.kwargs)
    return target


@kernel("aten::_pin_memory", "aten::pin_memory")
def pin_memory(call: Call) -> Any:
    return call.args[0]


@kernel("aten::record_stream")
def record_stream(call: Call) -> Any:
    return None


@kernel("aten::is_same_size")
def is_same_size(call: Call) -> bool:
    return bool(call.args[0].size() == call.args[1].size())


@kernel("aten::set_.source_Storage", "aten::set_.source_Tensor", "aten::set_.source_Storage_storage_offset")
def set_(call: Call) -> Any:
    out = call.func(*call.args, **call.kwargs)
    if block_of(out) is None:
        call.mode.adopt_tensor(out, call.device)
    return out
