"""Reductions (sum, mean, norm, amax, …) that split one output over several thread blocks.

PyTorch's reduction kernel (aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig) lets several blocks work on one
output when there are too few outputs to fill the card. Their partial results go to a buffer in global memory, and a
counter for each block column says who is last. A bias gradient (the sum over all rows) takes up to 130 MB this way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES_PER_THREAD = 16
_MAX_VALUES_PER_THREAD = 256
_VECTOR = 4


@dataclass(frozen=True, slots=True)
class Processor:
    """What the launch depends on: multiprocessors, and the threads each can hold."""

    sm_count: int
    threads_per_sm: int


@dataclass(slots=True)
class _Launch:
    outputs: int
    inputs_per_output: int
    output_vector: int = 1
    step_input: int = 1
    step_output: int = 1
    blocks_per_output: int = 1
    width: int = 1
    height: int = 1
    block_x_reduces: bool = field(default=False)

    def shape_block(self, dim0: int, dim1: int, max_threads: int) -> None:
        threads = max_threads // self.output_vector
        wide = _last_power_of_two(dim0) if dim0 < threads else threads
        high = _last_power_of_two(dim1) if dim1 < threads else threads
        self.width = min(wide, _WARP)
        self.height = min(high, threads // self.width)
        self.width = min(wide, threads // self.height)

    @property
    def values_per_thread(self) -> int:
        return -(-self.inputs_per_output // self.step_input)

    @property
    def grid(self) -> int:
        return -(-(self.outputs // self.output_vector) // self.step_output)


def _last_power_of_two(n: int) -> int:
    return 1 << (max(1, n).bit_length() - 1)


def reduction_workspace_bytes(
    shape: Sequence[int],
    strides: Sequence[int],
    reduced: Sequence[int],
    item_bytes: int,
    accumulator_bytes: int,
    processor: Processor,
    *,
    values_per_load: int = _VECTOR,
    max_threads: int = _MAX_THREADS,
) -> list[int]:
    """The transient buffers: partial results, then block counters; nothing when one block does an output.

    `accumulator_bytes` is the size of the value carried along (4 for a sum of any float type, 12 or 24 for a
    variance, 16 for an arg-maximum). `values_per_load` is the kernel's vt0.
    """
    reduced_dims, kept_dims = _iteration_order(shape, strides, reduced)
    outputs = math.prod(size for size, _ in kept_dims)
    total = math.prod(shape)
    if total == 0:
        return []
    launch = _Launch(outputs=outputs, inputs_per_output=total // outputs)
    dims = len(reduced_dims) + len(kept_dims)
    along_fastest = not kept_dims or (bool(reduced_dims) and reduced_dims[0][1] < kept_dims[0][1])
    if dims == 0:
        dim0 = dim1 = fastest = 1
        along_fastest = True
    elif along_fastest:
        dim0, dim1, fastest = launch.inputs_per_output, outputs, (reduced_dims or kept_dims)[0][1]
    else:
        dim0, dim1, fastest = outputs, launch.inputs_per_output, kept_dims[0][1]
    if fastest == 1:
        if along_fastest and dim0 > 128 and dims == 1 and values_per_load >= _VECTOR:
            dim0 //= values_per_load
        elif not along_fastest:
            launch.output_vector = _output_vector(reduced_dims, kept_dims, item_bytes)
            dim0 //= launch.output_vector
    launch.shape_block(dim0, dim1, max_threads)
    if along_fastest:
        launch.block_x_reduces = True
        launch.step_input *= launch.width
    else:
        launch.step_output *= launch.width
    across_warps = launch.values_per_thread >= min(launch.height * 16, _MAX_VALUES_PER_THREAD)
    if across_warps:
        launch.step_input *= launch.height
    else:
        launch.step_output *= launch.height
    blocks_per_sm = processor.threads_per_sm // (launch.width * launch.height)
    target = processor.sm_count * blocks_per_sm
    # Splitting over warps notes the step before it: zero only if it did not happen.
    if across_warps and launch.values_per_thread >= _MAX_VALUES_PER_THREAD and launch.grid <= target:
        to_fill_card = -(-target // launch.grid)
        most = -(-launch.values_per_thread // _MIN_VALUES_PER_THREAD)
        least = -(-launch.values_per_thread // _MAX_VALUES_PER_THREAD)
        launch.blocks_per_output = max(min(to_fill_card, most), least)
    if launch.blocks_per_output <= 1:
        return []
    partials = accumulator_bytes * outputs * launch.blocks_per_output
    if not launch.block_x_reduces:
        partials *= launch.width * launch.output_vector
    return [partials, 4 * launch.grid]


def _iteration_order(
    shape: Sequence[int], strides: Sequence[int], reduced: Sequence[int]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(size, stride) of reduced and kept dimensions, fastest first, merged where contiguous (TensorIterator)."""
    dims = len(shape)
    chosen = {dim % dims for dim in reduced} if dims else set()
    parts: list[list[tuple[int, int]]] = [[], []]
    for dim in range(dims):
        if shape[dim] != 1:
            parts[0 if dim in chosen else 1].append((shape[dim], strides[dim]))
    merged: list[list[tuple[int, int]]] = []
    for part in parts:
        result: list[tuple[int, int]] = []
        for size, stride in sorted(part, key=lambda item: (item[1], -item[0])):
            if result and result[-1][0] * result[-1][1] == stride:
                result[-1] = (result[-1][0] * size, result[-1][1])
            else:
                result.append((size, stride))
        merged.append(result)
    return merged[0], merged[1]


def _output_vector(reduced: list[tuple[int, int]], kept: list[tuple[int, int]], item_bytes: int) -> int:
    """How many neighbouring outputs one load covers: all strides and the run of outputs must allow it."""
    vector = _VECTOR
    for stride in (*(stride for _, stride in reduced), *(stride for _, stride in kept[1:]), kept[0][0]):
        while stride % vector:
            vector //= 2
    return vector
