"""Triton kernels of compiled code: they compute nothing here, and allocate nothing but for their first launch.

A kernel with several configurations is timed with each when it is first launched. Its mutated arguments are copied for
that, and a buffer as large as the L2 cache is written between the runs (CachingAutotuner.benchmark_all_configs,
InductorBenchmarker.benchmark_gpu). That is the memory of a first step, and is booked here in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual_gpu.storages import block_of

if TYPE_CHECKING:
    from vramcast.virtual_gpu.compiled.visibility import Visibility
    from vramcast.virtual_gpu.machine import Machine


class Kernel:
    """Stands for torch._inductor's CachingAutotuner in wrapper code."""

    def __init__(self, name: str, source: str, machine: Machine, visibility: Visibility) -> None:
        self.name = name
        self._source = source
        self._machine = machine
        self._visibility = visibility
        self._launched = False

    def run(self, *args: Any, stream: Any = None, **kwargs: Any) -> None:
        if not self._launched:
            self._launched = True
            self._first_launch(args)

    def _first_launch(self, args: tuple[Any, ...]) -> None:
        from torch._inductor.codecache import PyCodeCache

        with self._visibility.hide():
            tuner: Any = getattr(PyCodeCache.load(self._source), self.name)
        if len(tuner.configs) < 2:
            return
        names = tuner.fn.arg_names
        mutated = [
            arg for name, arg in zip(names, args, strict=False)
            if name in tuner.mutated_arg_names and isinstance(arg, torch.Tensor)
        ]  # fmt: skip
        ledger = self._machine.ledger
        copied, room = [], ledger.allocator.peak_allocated_bytes - ledger.allocator.allocated_bytes
        for tensor in mutated:
            nbytes = _extent_bytes(tensor)
            if not tuner.optimize_mem:
                copied.append(nbytes)
            elif nbytes <= room:  # else it is copied to the host instead
                copied.append(nbytes)
                room -= nbytes
        ledger.transient(copied)
        ledger.transient([self._machine.gpu.l2_bytes or 0, *copied])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a kernel of the virtual card has no {name}")


def _extent_bytes(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        if not tensor.numel():
            return 0
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        return int(extent * tensor.element_size()) if block_of(tensor) is not None else 0
