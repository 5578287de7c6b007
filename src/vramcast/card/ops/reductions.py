"""Reductions on CUDA split long inputs over thread blocks, whose partial results go through global memory.

How much that takes follows from the launch configuration, worked out here as setReduceConfig in
aten/src/ATen/native/cuda/Reduce.cuh does; at a few thousand outputs it can be more than 100 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import GPU
from vramcast.card.ops.data_reads import choice
from vramcast.card.ops.registry import Call, kernel

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

MAX_NUM_THREADS = 512
WARP = 32
MIN_VALUES_PER_THREAD, MAX_VALUES_PER_THREAD = 16, 256
OUTPUT_VECTOR = 4
INPUT_VECTOR = 4


def reduction_scratch(
    size: Sequence[int],
    stride: Sequence[int],
    dims: Sequence[int],
    element_size: int,
    accumulator_bytes: int,
    gpu: GpuSpec,
) -> list[int]:
    """[bytes of the partial results, bytes of the semaphores], or [] where one block finishes an output."""
    shape, strides, reduced = _coalesce(size, stride, dims)
    outputs = math.prod(shape[reduced:])
    inputs = math.prod(shape[:reduced])
    if outputs == 0 or inputs == 0 or not shape:
        return []
    on_fastest = reduced == len(shape) or (reduced > 0 and strides[0] < strides[reduced])
    if on_fastest or reduced == 0:
        dim0, dim1, fastest = inputs, outputs, strides[0]
    else:
        dim0, dim1, fastest = outputs, inputs, strides[reduced]
    vector = 1
    if fastest == 1:
        if on_fastest and dim0 > 128 and len(shape) == 1:
            dim0 //= INPUT_VECTOR
        elif not on_fastest:
            vector = _output_vector(shape, strides, reduced, element_size)
            dim0 //= vector
    threads_limit = MAX_NUM_THREADS // vector
    width0 = _pow2(dim0) if dim0 < threads_limit else threads_limit
    height0 = _pow2(dim1) if dim1 < threads_limit else threads_limit
    width = min(width0, WARP)
    height = min(height0, threads_limit // width)
    width = min(width0, threads_limit // height)
    step_input = step_output = 1
    x_reduces = on_fastest or reduced == 0
    if x_reduces:
        step_input *= width
    else:
        step_output *= width
    per_thread = -(-inputs // step_input)
    if not (per_thread >= height * 16 or per_thread >= MAX_VALUES_PER_THREAD):
        return []  # each warp has an output of its own
    step_input *= height
    per_thread = -(-inputs // step_input)
    target = (gpu.sm_count or 0) * (gpu.architecture.threads_per_sm // (width * height))
    grid = -(-(outputs // vector) // step_output)
    if per_thread < MAX_VALUES_PER_THREAD or grid > target:
        return []
    blocks = max(
        min(-(-target // grid), -(-per_thread // MIN_VALUES_PER_THREAD)), -(-per_thread // MAX_VALUES_PER_THREAD)
    )
    if blocks <= 1:
        return []
    partial = accumulator_bytes * outputs * blocks
    if not x_reduces:
        partial *= width * vector
    return [partial, 4 * grid]


def _coalesce(size: Sequence[int], stride: Sequence[int], dims: Sequence[int]) -> tuple[list[int], list[int], int]:
    """The iterator's view: reduced dimensions first, each part by rising stride, neighbours merged."""
    chosen = {d % len(size) for d in dims} if size else set()
    merged: list[list[tuple[int, int]]] = []
    for reducing in (True, False):
        part = sorted(
            (
                (st, sz)
                for i, (sz, st) in enumerate(zip(size, stride, strict=True))
                if sz != 1 and (i in chosen) == reducing
            )
        )
        joined: list[tuple[int, int]] = []
        for st, sz in part:
            if joined and joined[-1][0] * joined[-1][1] == st:
                joined[-1] = (joined[-1][0], joined[-1][1] * sz)
            else:
                joined.append((st, sz))
        merged.append(joined)
    everything = merged[0] + merged[1]
    return [sz for _, sz in everything], [st for st, _ in everything], len(merged[0])


def _output_vector(shape: list[int], strides: list[int], reduced: int, element_size: int) -> int:
    """Outputs a thread handles at once: 4 or 2 where the output's extent and all other strides allow it."""
    vector = OUTPUT_VECTOR
    while vector > 1 and shape[reduced] % vector:
        vector //= 2
    for i, stride in enumerate(strides):
        if i != reduced:
            while vector > 1 and stride % vector:
                vector //= 2
    return vector


def _pow2(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


def _accumulator(name: str, dtype: torch.dtype) -> int:
    """Bytes of what a thread carries along."""
    real = 8 if dtype in (torch.float64, torch.int64, torch.complex64) else 16 if dtype == torch.complex128 else 4
    if name in ("var", "std", "var_mean", "std_mean"):
        return 32 if dtype == torch.float64 else 16  # mean, m2, count twice
    if name in ("argmax", "argmin"):
        return 16
    if name in ("amax", "amin", "max", "min"):
        return dtype.itemsize
    if name in ("any", "all"):
        return 1
    return real


@kernel(
    "aten::sum", "aten::mean", "aten::amax", "aten::amin", "aten::var", "aten::std", "aten::var_mean",
    "aten::std_mean", "aten::prod", "aten::linalg_vector_norm", "aten::norm", "aten::any", "aten::all",
    "aten::nansum", "aten::max.default", "aten::min.default",
)  # fmt: skip
def reduction(call: Call) -> Any:
    out = call.run()
    if call.device == GPU:
        call.scratch(*call.once(_scratch, call, out))
    return out


def _scratch(call: Call, out: Any) -> list[int]:
    x = call.args[0]
    name = call.func._schema.name.removeprefix("aten::").removeprefix("linalg_vector_")
    if isinstance(out, torch.Tensor) and _converted(name, x.dtype, out.dtype):
        return [x.numel() * out.element_size()]
    if name in ("max", "min") and not x.is_contiguous():
        return [x.numel() * x.element_size(), *reduction_scratch(
            (x.numel(),), (1,), (0,), x.element_size(), x.element_size(), call.gpu
        )]  # fmt: skip
    if isinstance(x, torch.Tensor) and x.numel() > 4096:
        return reduction_scratch(
            x.size(), x.stride(), _dims(call, x), x.element_size(), _accumulator(name, x.dtype), call.gpu
        )
    return []


@kernel("aten::count_nonzero.dim_IntList")
def count_nonzero(call: Call) -> Any:
    """A mask, which is then summed as whole numbers."""
    x = call.args[0]
    mask = call.empty(x.size(), torch.bool)
    out = call.run()
    call.scratch(x.numel() * torch.int64.itemsize)
    del mask
    return out


@kernel("aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim")
def arg_reduction(call: Call) -> Any:
    """A value and its place are carried along together."""
    out = choice(call)
    x = call.args[0]
    if call.device == 0 and x.numel() > 4096:
        call.scratch(*reduction_scratch(x.size(), x.stride(), _dims(call, x), x.element_size(), 16, call.gpu))
    return out


def _converted(name: str, dtype: torch.dtype, result: torch.dtype) -> bool:
    """Sums in another dtype copy their input first; only half precision is widened on the fly."""
    if name not in ("sum", "mean", "prod", "nansum") or dtype == result:
        return False
    return not (dtype in (torch.float16, torch.bfloat16) and result == torch.float32)


def _dims(call: Call, x: torch.Tensor) -> list[int]:
    dim = call.argument("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)
