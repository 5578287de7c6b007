"""Kernels that do not pass through PyTorch's dispatcher: an error that names them, never a silent number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from vramcast.virtual_gpu.functions import FunctionMode, handles, placement
from vramcast.virtual_gpu.patches import Patches
from vramcast.virtual_gpu.rules import TRITON, TRITON_RULES
from vramcast.virtual_gpu.storages import GPU
from vramcast.virtual_gpu.unknown import UnknownKernel, leaves_torch, no_rule

_TRITON_LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.autotuner", "Autotuner"),
    ("triton.runtime.autotuner", "Heuristics"),
)


def install(put: Patches, report: Callable[[UnknownKernel], UnknownKernel]) -> None:
    """`report` notes the error: a program that swallows it must not end with a number."""
    _guard_triton(put, report)
    for owner in (torch.utils.dlpack, torch):
        put.set(owner, "to_dlpack", _to_dlpack(torch._C._to_dlpack, report))


def _guard_triton(put: Patches, report: Callable[[UnknownKernel], UnknownKernel]) -> None:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        name = _kernel_name(kernel)
        rule = TRITON_RULES.get(name)
        if rule is None:
            raise report(no_rule(f"{TRITON}{name}", args, "triton"))
        return rule(*args, **{k: v for k, v in kwargs.items() if k not in ("grid", "warmup")})

    for module_name, class_name in _TRITON_LAUNCHERS:
        launcher = getattr(sys.modules.get(module_name), class_name, None)
        if launcher is not None:
            put.set(launcher, "run", run)


def _kernel_name(kernel: Any) -> str:
    """The function below autotuners and heuristics."""
    while hasattr(kernel, "fn") and not callable(getattr(kernel.fn, "__code__", None)):
        inner = kernel.fn
        if not hasattr(inner, "fn"):
            return str(getattr(inner, "__name__", "kernel"))
        kernel = inner
    return str(getattr(kernel, "__name__", "kernel"))


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
