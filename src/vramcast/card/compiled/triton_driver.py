"""The driver that Triton would find for the named card. It launches nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.foreign import BENCHMARK_BUFFER_BYTES

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec

_SHARED_MEMORY_KIB = {
    (7, 0): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227,
    (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
"""By compute capability: what a block may use at most (CUDA C++ Programming Guide, technical specifications)."""


def shared_memory_per_block(gpu: GpuSpec) -> int:
    major, minor = gpu.compute_capability
    return _SHARED_MEMORY_KIB.get((major, minor), 99) * 1024


class Driver:
    """What Inductor asks of triton.runtime.driver.active."""

    def __init__(self, gpu: GpuSpec) -> None:
        self._gpu = gpu
        properties = {
            "max_shared_mem": shared_memory_per_block(gpu),
            "max_num_regs": 65536,
            "multiprocessor_count": gpu.sm_count or 0,
            "warpSize": 32,
            "mem_bus_width": 0,
            "sm_clock_rate": 0,
            "mem_clock_rate": 0,
        }
        self.utils = SimpleNamespace(get_device_properties=lambda device: properties)

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self._gpu.compute_capability
        return GPUTarget("cuda", major * 10 + minor, 32)

    def get_current_device(self) -> int:
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        major, minor = self._gpu.compute_capability
        return major, minor

    def get_benchmarker(self) -> Any:
        from triton.testing import do_bench

        return do_bench

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        """What triton.testing.do_bench writes between two runs (triton/backends/nvidia/driver.py)."""
        return torch.empty(BENCHMARK_BUFFER_BYTES // 4, dtype=torch.int, device="cuda")

    def clear_cache(self, cache: torch.Tensor) -> None:
        cache.zero_()

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...
