"""What Inductor asks a card, answered for the named one; and the entry points of its generated code."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.choices import tf32
from vramcast.card.compiled import benchmarks, constants, cuda_graphs, host_ops, shortcuts
from vramcast.card.compiled.kernels import Kernel
from vramcast.card.compiled.triton_driver import shared_memory_per_block
from vramcast.card.dispatch.unknown import GENERATED

if TYPE_CHECKING:
    from vramcast.card.compiled.compiler import Compiler
    from vramcast.card.compiled.visibility import Visibility
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches
    from vramcast.gpus import GpuSpec


def install(put: Patches, machine: Machine, compiler: Compiler) -> None:
    visibility = compiler.visibility
    _device_interface(put)
    _properties(put, machine)
    _generated_code(put, machine, visibility)
    _hidden_entry_points(put, machine, compiler)
    _log_graphs(put, machine)
    constants.install(put, visibility)
    shortcuts.install(put, visibility)
    host_ops.install(put)
    benchmarks.install(put, machine, visibility)
    cuda_graphs.install(put, machine)


@contextmanager
def caches_of_our_own() -> Iterator[None]:
    """Keep what is compiled here out of the user's caches: its kernels do nothing."""
    import torch._functorch.config
    import torch._inductor.config

    folder = tempfile.mkdtemp(prefix=GENERATED)
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    with ExitStack() as exits:
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
        exits.callback(_restore_environment, before)
        os.environ.update(dict.fromkeys(names, folder))
        options = {
            "fx_graph_cache": False, "fx_graph_remote_cache": False, "autotune_local_cache": False,
            "autotune_remote_cache": False, "compile_threads": 1, "worker_start_method": "subprocess",
        }  # fmt: skip
        exits.enter_context(torch._inductor.config.patch(options))
        exits.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        yield


def _restore_environment(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _device_interface(put: Patches) -> None:
    """It took the functions of torch.cuda as they were when it was imported."""
    from torch._dynamo import device_interface

    interface = device_interface.CudaInterface
    for name in (
        "current_device", "set_device", "device_count", "stream", "current_stream", "set_stream", "synchronize",
        "get_device_properties", "memory_allocated", "is_bf16_supported",
    ):  # fmt: skip
        put.set(interface, name, staticmethod(getattr(torch.cuda, name)))
    put.set(interface, "exchange_device", staticmethod(torch.cuda._exchange_device))
    put.set(interface, "maybe_exchange_device", staticmethod(torch.cuda._maybe_exchange_device))
    put.set(interface, "get_raw_stream", staticmethod(lambda index: 0))
    put.set(interface, "device", torch.cuda.device)
    put.set(interface, "Event", torch.cuda.Event)
    put.set(interface, "Stream", torch.cuda.Stream)
    put.set(device_interface, "caching_worker_device_properties", {})
    put.set(device_interface, "caching_worker_current_devices", {})


def _properties(put: Patches, machine: Machine) -> None:
    """Caches that would remember another card, and figures that Triton would ask the driver for."""
    import torch.utils._triton as has_triton
    from torch._inductor import utils
    from torch._inductor.runtime import triton_helpers
    from torch._inductor.runtime.hints import DeviceProperties

    gpu = machine.gpu
    put.set(triton_helpers, "set_driver_to_gpu", lambda: None)
    for module in (utils, has_triton):
        for name, function in list(vars(module).items()):
            if hasattr(function, "cache_clear") and any(word in name for word in _ASK_THE_CARD):
                function.cache_clear()
    create: Any = DeviceProperties.create
    cached: Any = functools.cache(create.__func__.__wrapped__)
    put.set(DeviceProperties, "create", classmethod(cached))
    put.set(utils, "get_gpu_shared_memory", lambda: shared_memory_per_block(gpu))
    put.set(utils, "get_gpu_dram_gbps", lambda: (gpu.bandwidth_bytes_per_second or 0) / 1e9)
    put.set(utils, "get_device_tflops", _tflops(gpu))


_ASK_THE_CARD = ("gpu", "triton", "tma", "device", "sm_count", "num_sms", "cuda")


def _tflops(gpu: GpuSpec) -> Callable[[torch.dtype], float]:
    def get_device_tflops(dtype: torch.dtype) -> float:
        rates = {
            torch.float16: gpu.fp16_tflops, torch.bfloat16: gpu.bf16_tflops,
            torch.float32: gpu.tf32_tflops if tf32.in_matmul() else gpu.fp32_tflops,
        }  # fmt: skip
        rate = rates.get(dtype)
        if rate is None:  # Inductor then takes the product for one that is limited by arithmetic
            raise NotImplementedError(f"{gpu.name}: no figure for {dtype}")
        return rate

    return get_device_tflops


def _generated_code(put: Patches, machine: Machine, visibility: Visibility) -> None:
    from torch._inductor.async_compile import AsyncCompile

    known: dict[str, Kernel] = {}

    def triton(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Kernel:
        if source_code not in known:
            known[source_code] = Kernel(kernel_name, source_code, machine, visibility)
        return known[source_code]

    def empty_strided_cuda(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    put.set(AsyncCompile, "triton", triton)
    put.set(AsyncCompile, "warm_pool", classmethod(lambda cls: None))
    put.set(AsyncCompile, "use_process_pool", classmethod(lambda cls: False))
    put.set(torch._C._dynamo.guards, "_empty_strided_cuda", empty_strided_cuda)


def _hidden_entry_points(put: Patches, machine: Machine, compiler: Compiler) -> None:
    """A backward graph is compiled when the first backward pass reaches it, outside Dynamo."""
    from torch._inductor import compile_fx

    original = compile_fx._compile_fx_inner

    @functools.wraps(original)
    def _compile_fx_inner(*args: Any, **kwargs: Any) -> Any:
        with compiler.compiling("a graph", lasting=True), benchmarks.without_settings_that_need_a_card(machine):
            return original(*args, **{**kwargs, "cpp_wrapper": False})

    put.set(compile_fx, "_compile_fx_inner", _compile_fx_inner)


def _log_graphs(put: Patches, machine: Machine) -> None:
    """Ops that generated code calls cost the host less than those of a program."""
    from torch._inductor.output_code import CompiledFxGraph

    original = CompiledFxGraph.__call__

    @functools.wraps(original)
    def __call__(graph: Any, inputs: Any) -> Any:
        with machine.op_log.in_compiled_graph(len(inputs)):
            return original(graph, inputs)

    put.set(CompiledFxGraph, "__call__", __call__)
