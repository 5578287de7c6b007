"""Operations on lists of tensors that need memory of their own."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.ops.registry import Call, kernel

CHUNK = 65536  # elements a block works on (kChunkSize in ForeachFunctors.cuh)


@kernel("aten::_foreach_norm")
def foreach_norm(call: Call) -> Any:
    """One partial norm for each chunk of the largest tensor, for every tensor (ForeachReduceOp.cu)."""
    tensors = call.args[0]
    if not _fast(tensors):
        return call.run()
    chunks = max(-(-tensor.numel() // CHUNK) for tensor in tensors)
    dtype = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    partial = call.empty((len(tensors) * chunks,), dtype)
    norms = call.run()
    del partial
    return norms


def _fast(tensors: list[torch.Tensor]) -> bool:
    first = tensors[0]
    return first.dtype.is_floating_point and all(
        tensor.dtype == first.dtype and tensor.device == first.device and tensor.numel() for tensor in tensors
    )


@kernel("aten::_amp_foreach_non_finite_check_and_unscale_")
def unscale_gradients(call: Call) -> Any:
    """Nothing overflows here; where it does, the scaler skips the step."""
    call.mode.machine.note("GradScaler", _NO_OVERFLOW)
    return call.run()


_NO_OVERFLOW = (
    "assumed that no gradient overflows. The scaler skips a step where one does, often some of the first: until one is "
    "made there is no optimizer state, and less memory is taken"
)
