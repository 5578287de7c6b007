"""Kernels that do not pass through PyTorch's dispatcher: a note, or an error that names them, never a silent number."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.base.errors import CannotPredict
from vramcast.card.device.patches import Patches
from vramcast.card.dispatch.functions import FunctionMode, handles, placement
from vramcast.card.dispatch.rules import TRITON_RULES
from vramcast.card.dispatch.storages import GPU
from vramcast.card.dispatch.unknown import UnknownKernel, caller, leaves_torch
from vramcast.card.values import known_values as values

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine

_TRITON_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
)


BENCHMARK_BUFFER_BYTES = 256 << 20
"""What triton.testing.do_bench clears between runs so that no input is left in the cache."""


def install(put: Patches, machine: Machine) -> None:
    report = machine.report_unknown  # notes the error: a program that swallows it must not end with a number
    _follow_triton(put, machine)
    _follow_cuda_source(put, machine)
    put.set(torch.export, "export", _refuse_export)
    _refuse_joint_graphs(put, report)
    put.set(torch.jit, "trace", _untraced(torch.jit.trace, machine))
    for owner in (torch.utils.dlpack, torch):
        put.set(owner, "to_dlpack", _to_dlpack(torch._C._to_dlpack, report))


def _follow_triton(put: Patches, machine: Machine) -> None:
    """A Triton kernel writes into tensors that it is given, so a launch allocates nothing; a rule may say otherwise."""
    tuned: set[Any] = set()

    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        name = _kernel_name(kernel)
        rule = TRITON_RULES.get(name)
        if rule is not None:
            return rule(*args, **{k: v for k, v in kwargs.items() if k not in ("grid", "warmup")})
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor) and arg.is_cuda]
        _choose_first(kernel)
        key = _tuning_key(kernel, args, kwargs)
        if key is not None and key not in tuned:
            tuned.add(key)
            machine.ledger.transient([BENCHMARK_BUFFER_BYTES])
        _log_launch(machine, name, tensors)
        text = f"{name} is taken to allocate nothing and to read or write each of its tensors once"
        machine.note("Triton", text, caller("triton"))
        return None

    triton = sys.modules.get("triton")
    if triton is not None:  # packages choose kernels by the card that Triton's driver names
        from vramcast.card.compiled.triton_driver import Driver

        config = triton.runtime.driver
        put.set(config, "_active" if hasattr(config, "_active") else "active", Driver(machine.gpu))  # Triton 3.4; older
    for module_name, class_name in _TRITON_LAUNCHERS:
        launcher = getattr(sys.modules.get(module_name), class_name, None)
        if launcher is not None:
            put.set(launcher, "run", run)


def _log_launch(machine: Machine, name: str, tensors: list[torch.Tensor]) -> None:
    """A kernel of the program's own: its time is that of the bytes it may touch."""
    with machine.op_log.instead(f"triton.{name}", tuple(tensors)):
        for tensor in tensors:
            values.forget(tensor)


def _follow_cuda_source(put: Patches, machine: Machine) -> None:
    """torch.cuda._compile_kernel compiles CUDA source while the program runs. A kernel gets addresses and numbers, so a
    launch allocates nothing; nothing is compiled here."""

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(
            self, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), args: Any = None, shared_mem: int = 0,
            stream: Any = None,
        ) -> None:  # fmt: skip
            tensors = [arg for arg in args or () if isinstance(arg, torch.Tensor) and arg.is_cuda]
            _log_launch(machine, self.name, tensors)
            text = f"{self.name} is taken to allocate nothing and to read or write each of its tensors once"
            machine.note("CUDA source", text, caller())

        def set_shared_memory_config(self, shared_mem_bytes: int) -> None: ...

    def compile_kernel(kernel_source: str, kernel_name: str, *args: Any, **options: Any) -> Kernel:
        return Kernel(kernel_name)

    for name in ("_compile_kernel", "compile_kernel"):
        if hasattr(torch.cuda, name):
            put.set(torch.cuda, name, compile_kernel)


def _choose_first(kernel: Any) -> None:
    """Programs ask an autotuner which configuration was best, e.g. how many partial sums it left: the first one."""
    while kernel is not None and not getattr(kernel, "configs", None):
        kernel = getattr(kernel, "fn", None)
    if kernel is not None:
        kernel.best_config = kernel.configs[0]


def _tuning_key(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What Triton's autotuner measures anew for; None for a kernel without several configurations. Heuristics may lie
    around it; what they work out belongs to the kernel's other arguments."""
    while len(getattr(kernel, "configs", ())) < 2:
        kernel = getattr(kernel, "fn", None)
        if kernel is None:
            return None
    named = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    dtypes = tuple(str(value.dtype) for name, value in named.items() if hasattr(value, "dtype"))
    return id(kernel), tuple(str(named.get(name)) for name in kernel.keys), dtypes


def _kernel_name(kernel: Any) -> str:
    """The function below autotuners and heuristics."""
    while hasattr(kernel, "fn") and not callable(getattr(kernel.fn, "__code__", None)):
        inner = kernel.fn
        if not hasattr(inner, "fn"):
            return str(getattr(inner, "__name__", "kernel"))
        kernel = inner
    return str(getattr(kernel, "__name__", "kernel"))


def _refuse_export(*args: Any, **kwargs: Any) -> Any:
    raise CannotPredict(
        f"torch.export is used at {caller()}: what an exported program takes is not modelled. Leave it out for the "
        "prediction."
    )


def _refuse_joint_graphs(put: Patches, report: Callable[[UnknownKernel], UnknownKernel]) -> None:
    """Operators of control flow that trace their function with its gradient when they are run, each for itself."""
    for name, file, entry in (
        ("map", "map", "create_bw_fn"),
        ("associative_scan", "associative_scan", "create_bw_fn"),
        ("scan", "partitioner", "create_hop_joint_graph"),
    ):
        module = sys.modules.get(f"torch._higher_order_ops.{file}")
        if hasattr(module, entry):
            put.set(module, entry, functools.partial(_refuse_joint_graph, name, report))


def _refuse_joint_graph(name: str, report: Callable[[UnknownKernel], UnknownKernel], *args: Any, **kwargs: Any) -> Any:
    raise report(
        UnknownKernel(
            f"torch's {name} is differentiated at {caller()}: what it keeps for that is not modelled. Write it as a "
            "loop for the prediction."
        )
    )


def _untraced(original: Callable[..., Any], machine: Machine) -> Callable[..., Any]:
    """torch.jit.trace: while it traces, sizes are tensors, which no rule understands. The function runs as it would be
    run to trace it, and stands for what was traced."""

    def trace(func: Any = None, example_inputs: Any = None, *args: Any, **options: Any) -> Any:
        if func is None:
            return functools.partial(trace, example_inputs=example_inputs, **options)
        machine.note("torch.jit.trace", f"{getattr(func, '__name__', type(func).__name__)} runs as it is", caller())
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch.utils.tensorboard"):
            return original(torch.nn.Identity(), torch.zeros(1))  # only its graph is wanted, to be drawn
        named = options.get("example_kwarg_inputs")
        if named is not None:
            func(**named)
        else:
            func(*(example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)))
        return func

    return trace


def _to_dlpack(original: Any, report: Callable[[UnknownKernel], UnknownKernel]) -> Callable[..., Any]:
    def to_dlpack(tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:
            raise report(leaves_torch("DLPack", tensor))
        return original(tensor)

    return to_dlpack


@handles(torch.Tensor.__cuda_array_interface__.__get__)
def _cuda_array_interface(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if placement(args[0]) == GPU:
        raise mode.dispatch.machine.report_unknown(leaves_torch("__cuda_array_interface__", args[0]))
    return func(*args, **kwargs)


@handles(torch.Tensor.__dlpack__)
def _dlpack(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if placement(args[0]) == GPU:
        raise mode.dispatch.machine.report_unknown(leaves_torch("DLPack", args[0]))
    return func(*args, **kwargs)
