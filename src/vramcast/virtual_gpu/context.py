"""`virtual_gpu(...)`: "cuda" without a GPU, for as long as the `with` block lasts."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vramcast.allocator import AllocatorConf, CachingAllocator, OutOfMemory
from vramcast.errors import UsageError
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.trace import StepTrace
from vramcast.virtual_gpu import cuda_api, host_parameters, patches, recurrent
from vramcast.virtual_gpu.autocast import AutocastKernels
from vramcast.virtual_gpu.composites import Composites
from vramcast.virtual_gpu.device_memory import context_bytes
from vramcast.virtual_gpu.dispatch import DispatchMode
from vramcast.virtual_gpu.functions import FunctionMode, device_context_function
from vramcast.virtual_gpu.ledger import AUTOCAST_COPIES, Ledger
from vramcast.virtual_gpu.machine import Machine
from vramcast.virtual_gpu.position import Position
from vramcast.virtual_gpu.storages import block_of
from vramcast.virtual_gpu.unknown import no_rule

_active: VirtualGpu | None = None


class VirtualGpu:
    """A card that computes nothing and remembers everything. Use it as a context manager."""

    def __init__(
        self, gpu: GpuSpec, allocator_conf: str | None = None, limit_bytes: int | None = None, source: str = ""
    ) -> None:
        self.gpu = gpu
        conf = allocator_conf
        if conf is None:
            conf = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
        self.allocator_conf = conf
        self.source = source
        self._limit_bytes = limit_bytes
        self._allocator = CachingAllocator(capacity_bytes=None, conf=AllocatorConf.parse(conf))
        self._ledger = Ledger(self._allocator)
        self._position = Position(self._ledger)
        self._machine = Machine(gpu, self._ledger, self._position)
        self._ledger.describe_out_of_memory = self._describe_out_of_memory
        self._dispatch = DispatchMode(self._ledger, self._machine)
        self._functions = FunctionMode(self._dispatch)
        self._autocast = AutocastKernels(self._mark_autocast_copy)
        self._composites = Composites(self._machine)
        self._patches = patches.Patches()
        self._allocator.set_capacity(self.capacity_bytes)
        self._trace: StepTrace | None = None

    @property
    def capacity_bytes(self) -> int:
        """What the allocator may take: the limit asked for, or the card less context and kernels."""
        if self._limit_bytes is not None:
            return self._limit_bytes
        return self.gpu.total_memory_bytes - self._context_bytes()

    def _context_bytes(self) -> int:
        return context_bytes(self.gpu, self._machine.libraries)

    # -- entering and leaving -------------------------------------------------------------------------------

    def __enter__(self) -> VirtualGpu:
        global _active
        if _active is not None:
            raise UsageError("a virtual GPU is active already; leave it before you enter another")
        if self._trace is not None:
            raise UsageError("this virtual GPU was used already; make a new one with vramcast.virtual_gpu(...)")
        _active = self
        # Optimizers import dynamo at their first use; it must not find our stand-ins in torch's namespaces.
        importlib.import_module("torch._dynamo")
        self._install()
        self._position.install()
        self._autocast.install()
        self._composites.install()
        self._dispatch.__enter__()
        self._functions.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        global _active
        self._functions.__exit__(*exc)
        self._dispatch.__exit__(*exc)
        self._composites.remove()
        self._autocast.remove()
        self._position.classify()
        self._position.remove()
        self._patches.undo()
        self._ledger.close()
        self._trace = self._build_trace()
        _active = None

    def _install(self) -> None:
        put = self._patches.set
        api = cuda_api.replacements(self._machine, self.gpu.total_memory_bytes, self._context_bytes)
        for name, value in api.items():
            put(torch.cuda, name, value)
            if hasattr(torch.cuda.memory, name):
                put(torch.cuda.memory, name, value)
            if hasattr(torch.cuda.random, name):
                put(torch.cuda.random, name, value)
        put(torch.backends.cudnn, "is_available", lambda: True)
        put(torch.backends.cudnn, "is_acceptable", lambda tensor: tensor.device.type == "cuda")
        put(torch.backends.cudnn.rnn, "get_cudnn_mode", recurrent.cudnn_mode)
        put(torch, "Generator", patches.Generator)
        put(torch, "compile", patches.compile_as_eager(self._note_compiled))
        put(torch.nn.Module, "compile", lambda module, *a, **k: self._note_compiled(type(module).__name__))
        put(torch._C, "_group_tensors_by_device_and_dtype",
            patches.groups_on_the_card(torch._C._group_tensors_by_device_and_dtype))
        put(torch, "clear_autocast_cache", self._autocast.clear)
        put(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor)
        put(torch.nn.Parameter, "__new__",
            staticmethod(host_parameters.parameter_new(torch.nn.Parameter.__new__, self._ledger)))
        run = patches.backward_runner(torch.autograd.graph._engine_run_backward, self._in_backward)
        put(torch.autograd, "_engine_run_backward", run)
        put(torch.autograd.graph, "_engine_run_backward", run)
        put(torch.autograd.graph.saved_tensors_hooks, "__init__",
            patches.hooks_with_modes(torch.autograd.graph.saved_tensors_hooks.__init__, lambda: self._functions))
        put(torch.utils._device.DeviceContext, "__torch_function__",
            device_context_function(lambda: self._functions))
        patches.guard_triton(self._patches, lambda name: no_rule(f"triton::{name}", ()))

    @contextmanager
    def _in_backward(self) -> Iterator[None]:
        phase = self._position.enter_backward()
        try:
            with self._functions:
                yield
        finally:
            self._position.leave_backward(phase)

    def _note_compiled(self, name: str) -> None:
        self._machine.note("torch.compile", f"{name} is predicted as eager code")

    def _mark_autocast_copy(self, tensor: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            block = block_of(tensor)
        if block is not None and block.block_id >= 0:
            self._ledger.builder.set_kind(block.block_id, AUTOCAST_COPIES)

    # -- results --------------------------------------------------------------------------------------------

    def on_step(self, callback: Callable[[int], None]) -> None:
        """Call `callback` after each optimizer step with the steps every optimizer seen so far has finished."""
        self._position.on_step = lambda steps: callback(min(steps.values()))

    def trace(self) -> StepTrace:
        """What was allocated and freed, as data that can be saved and replayed."""
        if self._trace is None:
            self._position.classify()
            return self._build_trace()
        return self._trace

    def prediction(self) -> Any:
        """Peaks, verdict and account of the run so far."""
        from vramcast.memory import predict

        return predict(self.trace())

    def _build_trace(self) -> StepTrace:
        return self._ledger.builder.build(
            gpu=self.gpu.to_dict(),
            torch_version=torch.__version__,
            allocator_conf=self.allocator_conf,
            capacity_bytes=self.capacity_bytes,
            context_bytes=self._context_bytes(),
            versions=_versions(),
            source=self.source,
        )

    def _describe_out_of_memory(self, error: OutOfMemory) -> str:
        from vramcast.memory.out_of_memory import describe

        self._position.classify()
        return describe(error, self.gpu, self._ledger.builder, self._context_bytes())


def virtual_gpu(
    gpu: str | GpuSpec, *, allocator_conf: str | None = None, limit_bytes: int | None = None, source: str = ""
) -> VirtualGpu:
    """A virtual card by name ("rtx-4090") or specification.

    `allocator_conf`: what PYTORCH_CUDA_ALLOC_CONF would say (default: the environment's).
    `limit_bytes`: what PyTorch's allocator may reserve, instead of the card's memory less context.
    """
    spec = find_gpu(gpu) if isinstance(gpu, str) else gpu
    if limit_bytes is not None and limit_bytes <= 0:
        raise UsageError(f"limit_bytes must be positive, not {limit_bytes}")
    return VirtualGpu(spec, allocator_conf, limit_bytes, source)


def _versions() -> dict[str, str]:
    import sys

    found = {}
    for name in ("transformers", "diffusers", "peft", "timm", "bitsandbytes", "torchvision"):
        if name in sys.modules:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found
