"""Memory on the card outside PyTorch's allocator: the CUDA context and the kernels loaded so far."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

MIB = 1 << 20

KERNELS_BYTES = {
    "torch": 92 * MIB,
    "cublas": 66 * MIB,
    "cublas-backward": 64 * MIB,
    "cudnn": 18 * MIB,
    "cufft": 8 * MIB,
}
"""What the first use of each adds to a process's memory beside the allocator's: kernels, handles, library buffers.

Measured on an H200 with torch 2.11+cu130, driver 580, as NVML counts the process: 518 MiB bare, 610 after the first
kernel, 676 after the first matmul, 740 once autograd's own thread has multiplied too, 758 with cuDNN. Taken as it is
for other cards, where nobody has measured it.
"""


def context_bytes(gpu: GpuSpec, libraries: Collection[str]) -> int:
    """The context and what has been loaded into it; the first kernel always is."""
    return gpu.context_bytes + sum(KERNELS_BYTES.get(name, 0) for name in {"torch", *libraries})
