"""Triton kernels of compiled code: they compute nothing here, and allocate nothing but for their first launch.

A kernel with several configurations is timed with each when it is first launched. Its mutated arguments are copied for
that, and a buffer as large as the L2 cache is written between the runs (CachingAutotuner.benchmark_all_configs,
InductorBenchmarker.benchmark_gpu). That is the memory of a first step, and is booked here in the same order.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch

from vramcast.base.sealing import unsealed
from vramcast.card.compiled.registers import registers_of_a_thread
from vramcast.card.compiled.traffic import Traffic
from vramcast.card.dispatch.storages import block_of
from vramcast.card.values.known_values import forget

if TYPE_CHECKING:
    from vramcast.card.compiled.visibility import Visibility
    from vramcast.card.device.machine import Machine


class Kernel:
    """Stands for torch._inductor's CachingAutotuner in wrapper code."""

    def __init__(self, name: str, source: str, machine: Machine, visibility: Visibility) -> None:
        self.name = name
        self._source = source
        self._machine = machine
        self._visibility = visibility
        self._launched = False
        self._traffic = Traffic(source)
        self._written = self._traffic.written()
        self._numbers: dict[Any, int] = {}
        """The numbers in the log of ops of launches with such arguments."""

    def run(self, *args: Any, stream: Any = None, **kwargs: Any) -> None:
        if not self._launched:
            self._launched = True
            self._first_launch(args)
        self._forget_contents(args)
        if self._machine.op_log.on:
            with torch._C.DisableTorchFunction():
                self._log(args)

    def _forget_contents(self, args: tuple[Any, ...]) -> None:
        """What the kernel would have written is not known: masks, counts and losses that the program reads."""
        with torch._C.DisableTorchFunction():
            for place in self._written:
                if place < len(args) and isinstance(args[place], torch.Tensor):
                    forget(args[place])

    def _log(self, args: tuple[Any, ...]) -> None:
        log = self._machine.op_log
        key = tuple((arg.shape, arg.dtype) if isinstance(arg, torch.Tensor) else arg for arg in args)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = log.number(self._traffic.op, self._traffic.arguments(args), {}, None)
        log.note(number, ())

    def _first_launch(self, args: tuple[Any, ...]) -> None:
        with unsealed(), self._visibility.hide():
            tuner = _tuner(self.name, self._source)
        runs = len(tuner.configs)
        if runs < 2 and _tries_smaller_block(tuner, self._source):
            runs = 2
        if runs < 2:
            return
        mutated = [
            _extent_bytes(arg) for name, arg in zip(tuner.fn.arg_names, args, strict=False)
            if name in tuner.mutated_arg_names and isinstance(arg, torch.Tensor)
        ]  # fmt: skip
        # The buffer raises the peak, and so what may be copied beside the next configuration; then nothing changes.
        for _ in range(min(runs, 3) if mutated else 1):
            copied = self._copied(mutated, tuner.optimize_mem)
            self._machine.ledger.transient(copied)
            self._machine.ledger.transient([self._machine.gpu.l2_bytes or 0, *copied])

    def _copied(self, mutated: list[int], sparing: bool) -> list[int]:
        """Sizes of the arguments that are copied on the card, the others to the host: those that do not raise the
        peak (copy_args_to_cpu_if_needed)."""
        allocator = self._machine.ledger.allocator
        copied, room = [], allocator.peak_allocated_bytes - allocator.allocated_bytes
        for nbytes in mutated:
            if not sparing or nbytes <= room:
                copied.append(nbytes)
                room -= nbytes
        return copied

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a kernel of the virtual card has no {name}")


class _Function:
    """Stands for triton's JITFunction, which looks up and parses the lines of its function."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.arg_names = list(inspect.signature(fn).parameters)


def _function(fn: Any = None, **options: Any) -> Any:
    return _function if fn is None else _Function(fn)


def _tuner(name: str, source: str) -> Any:
    """The CachingAutotuner that generated code makes, which knows the configurations."""
    import triton

    content: dict[str, Any] = {"__name__": name, "__file__": f"{name}.py"}
    original, triton.jit = triton.jit, _function
    try:
        exec(compile(source, name, "exec"), content)
    finally:
        triton.jit = original
    return content[name]


def _tries_smaller_block(tuner: Any, source: str) -> bool:
    """A reduction that uses many registers is compiled once more with half the block, and both are timed
    (CachingAutotuner._dynamic_scale_rblock). The registers of a thread are estimated."""
    from torch._inductor.runtime.hints import HeuristicType

    properties = tuner.device_props
    if tuner.heuristic_type is not HeuristicType.REDUCTION or not tuner.inductor_meta.get("dynamic_scale_rblock", True):
        return False
    (config,) = tuner.configs
    x_block = config.kwargs.get("XBLOCK", 1)
    r_block = math.prod(value for name, value in config.kwargs.items() if name.startswith("R"))
    threads = config.num_warps * (properties.warp_size or 32)
    registers = math.ceil(registers_of_a_thread(source, x_block, r_block, threads))
    if r_block <= 64 or registers <= properties.regs_per_multiprocessor // properties.max_threads_per_multi_processor:
        return False
    blocks = -(-tuner.size_hints["x"] // x_block)
    at_once = max(properties.regs_per_multiprocessor // (registers * threads), 1) * properties.multi_processor_count
    return bool(blocks > at_once)


def _extent_bytes(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        if not tensor.numel():
            return 0
        extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        return int(extent * tensor.element_size()) if block_of(tensor) is not None else 0
