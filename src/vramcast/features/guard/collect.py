"""What is alive on the card at this moment, from the allocator's snapshot and from whoever holds its tensors."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import UsageError
from vramcast.card.device.containers import all_of
from vramcast.card.device.context import active_card
from vramcast.card.dispatch.storages import GPU, block_of
from vramcast.card.dispatch.unknown import is_machinery
from vramcast.gpus.state import local_gpu
from vramcast.memory import Prediction
from vramcast.memory.alive import Alive, LiveBlock, Owner, Variable, account_of_alive

_OPTIMIZED = 0x1  # inspect.CO_OPTIMIZED: the locals of a function, not a module's namespace


def collect(device: int, tried_bytes: int, *, steps: int, prediction: Prediction | None) -> Alive:
    segments = [segment for segment in torch.cuda.memory._snapshot(device)["segments"] if segment["device"] == device]
    blocks = [
        LiveBlock(block["address"], block["size"], block["requested_size"], _where(block.get("frames") or ()))
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    free, total = torch.cuda.mem_get_info(device)
    fraction = torch.cuda.get_per_process_memory_fraction(device)
    return account_of_alive(
        blocks,
        list(_owners()),
        list(_variables()),
        reserved_bytes=sum(segment["total_size"] for segment in segments),
        tried_bytes=tried_bytes,
        total_bytes=total,
        free_bytes=free,
        process_bytes=_process_bytes(device, total - free),
        limit_bytes=int(total * fraction) if fraction < 1 else None,
        steps=steps,
        prediction=prediction,
    )


def _process_bytes(device: int, used_bytes: int) -> int | None:
    """What the driver counts as this process's. Nobody else is on a virtual card."""
    if active_card() is not None:
        return used_bytes
    try:
        card = local_gpu(device)
    except UsageError:
        return None
    return next((process.used_bytes for process in card.processes if process.pid == os.getpid()), None)


def _owners() -> Iterator[Owner]:
    """Every module and optimizer of the process. Asked only when memory has run out, so it may take its time."""
    modules: list[nn.Module] = []
    optimizers: list[Any] = []
    for thing in gc.get_objects():
        # type(), because asking a proxy object for its class may run code of its own.
        if issubclass(type(thing), nn.Module):
            modules.append(thing)
        elif issubclass(type(thing), torch.optim.Optimizer):
            optimizers.append(thing)
    inner = {id(child) for module in modules for child in module.modules() if child is not module}
    names: dict[int, str] = {}
    for root in (module for module in modules if id(module) not in inner):
        prefix = type(root).__name__
        for name, parameter in root.named_parameters():
            names.setdefault(id(parameter), f"{prefix}.{name}")
            yield from _parameter(parameter, f"{prefix}.{name}")
        for name, buffer in root.named_buffers():
            yield from _owner(buffer, "buffers", f"{prefix}.{name}")
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            for parameter in group["params"]:
                if id(parameter) not in names:
                    yield from _parameter(parameter, "a parameter of no module")
        for parameter, state in getattr(optimizer, "state", {}).items():
            for tensor in all_of(torch.Tensor, state):
                yield from _owner(tensor, "optimizer state", names.get(id(parameter), ""))


def _parameter(parameter: torch.Tensor, name: str) -> Iterator[Owner]:
    yield from _owner(parameter, "weights", name)
    if parameter.grad is not None:
        yield from _owner(parameter.grad, "gradients", name)


def _owner(tensor: Any, kind: str, name: str) -> Iterator[Owner]:
    address = _address(tensor)
    if address:
        yield Owner(address, kind, name, _shape(tensor))


def _variables() -> Iterator[Variable]:
    """Tensors that variables of the user's functions hold, innermost function first."""
    for frame in _frames():
        code = frame.f_code
        where = f"{os.path.basename(code.co_filename)}:{frame.f_lineno}"
        held = dict(frame.f_locals)
        if code.co_flags & _OPTIMIZED and sys.version_info < (3, 13):
            frame.f_locals.clear()  # a snapshot that the frame keeps, and that would keep the tensors
        for name, value in held.items():
            for path, tensor in _named_tensors(name, value):
                address = _address(tensor)
                if address:
                    yield Variable(address, path, where, _shape(tensor))


def _frames() -> Iterator[Any]:
    """Frames of this thread and of the main one: a backward pass runs in a thread without Python frames of its own."""
    current = sys._current_frames()
    for thread in dict.fromkeys((threading.get_ident(), threading.main_thread().ident)):
        frame: Any = current.get(thread or 0)
        while frame is not None:
            if not is_machinery(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        yield name, value
    elif isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", tensor) for key, tensor in value.items() if isinstance(tensor, torch.Tensor))
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", tensor) for i, tensor in enumerate(value[:64]) if isinstance(tensor, torch.Tensor))


def _address(tensor: Any) -> int:
    """The address of its memory on the card, real or virtual; 0 where it has none there."""
    try:
        with torch._C.DisableTorchFunction():
            if tensor.is_meta:
                block = block_of(tensor)
                if block is None or block.device != GPU or block.ledger is None or not block.ledger.open:
                    return 0
                return block.address
            return int(tensor.untyped_storage().data_ptr()) if tensor.is_cuda else 0
    except (RuntimeError, NotImplementedError, AttributeError):
        return 0


def _shape(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _where(frames: Any) -> str:
    """file:line of the innermost Python frame of the user's, when the allocator's history was on."""
    for frame in frames:
        name = str(frame.get("filename", ""))
        if name.endswith(".py") and not is_machinery(name):
            return f"{os.path.basename(name)}:{frame.get('line')}"
    return ""
