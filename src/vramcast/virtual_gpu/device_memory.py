"""Memory on the card outside PyTorch's allocator: the CUDA context and the kernels loaded so far."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

MIB = 1 << 20
# Measured on an H200 (driver 580): 527 MiB bare, 595 after the first matmul, 700 after the first convolution.
KERNELS_BYTES = {"cublas": 68 * MIB, "cudnn": 105 * MIB}


def context_bytes(gpu: GpuSpec, libraries: Collection[str]) -> int:
    return gpu.context_bytes + sum(KERNELS_BYTES.get(name, 0) for name in libraries)
