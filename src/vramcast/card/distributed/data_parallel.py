"""What torch.nn.DataParallel and torch.cuda.comm have in C++ (torch/csrc/cuda/comm.cpp), as copies between cards.

Their Python code runs as it is, so replicas, scattered batches and gathered outputs are booked where they would lie.
"""

from __future__ import annotations

import importlib
import itertools
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.device.host_parameters import without_data
from vramcast.card.device.one_card import CARD

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches


def install(put: Patches, machine: Machine) -> None:
    comm = _Comm(machine)
    put.set(torch._C, "_broadcast", comm.broadcast)
    put.set(torch._C, "_broadcast_out", comm.broadcast_out)
    put.set(torch._C, "_broadcast_coalesced", comm.broadcast_coalesced)
    put.set(torch._C, "_scatter", _scatter)
    put.set(torch._C, "_scatter_out", _scatter_out)
    put.set(torch._C, "_gather", comm.gather)
    put.set(torch._C, "_gather_out", _gather_out)
    for name in ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter"):
        put.set(torch._C, f"_nccl_{name}", comm.collective(name))
    parallel_apply = importlib.import_module("torch.nn.parallel.parallel_apply")
    put.set(parallel_apply, "threading", SimpleNamespace(Thread=_RunAtOnce, Lock=threading.Lock))
    # The streams that scatter copies on are kept in a list as long as there are cards: each run makes its own.
    put.set(importlib.import_module("torch.nn.parallel._functions"), "_streams", None)


class _RunAtOnce(threading.Thread):
    """A thread that is over when it has started. DataParallel's each use a card of their own, so what a card is given,
    and in which order, is the same."""

    def start(self) -> None:
        super().start()
        self.join()


class _Comm:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def collective(self, name: str) -> Any:
        """A collective of NCCL among cards of this process: its tensors are there already."""

        def run(*args: Any, **kwargs: Any) -> None:
            self._note(name, args[0])

        return run

    def _note(self, op: str, tensors: Sequence[torch.Tensor]) -> None:
        """NCCL has a communicator for these cards from now on, and it takes time."""
        cards = [tensor.get_device() for tensor in tensors]
        self._machine.communicators.note(f"cards {cards}", op, lambda: cards, CARD.count)
        size = tensors[0].numel() * tensors[0].element_size()
        self._machine.op_log.communicate(f"{op} {size} {len(cards)} 1 here")

    def broadcast(self, tensor: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        outs = [torch.empty_like(tensor, device=_cuda(device)) for device in devices[1:]]
        return tensor, *self.broadcast_out(tensor, outs)

    def broadcast_out(self, tensor: torch.Tensor, outs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        self._note("broadcast", [tensor, *outs])
        with self._machine.op_log.silent():
            for out in outs:
                out.copy_(tensor, non_blocking=True)
        return tuple(outs)

    def broadcast_coalesced(
        self, tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        """Tensors of one dtype go together until they fill a buffer; copies are views of what arrived."""
        copies: list[dict[int, torch.Tensor]] = [{} for _ in devices]
        with torch.no_grad():
            for chunk in _chunks(tensors, buffer_size):
                flat = torch._C._nn.flatten_dense_tensors([tensors[place] for place in chunk])
                arrived = self.broadcast(flat, devices)
                for on_device, buffer in zip(copies[1:], arrived[1:], strict=True):
                    parts = torch._C._nn.unflatten_dense_tensors(buffer, [tensors[place] for place in chunk])
                    on_device.update(zip(chunk, parts, strict=True))
        copies[0] = dict(enumerate(tensors))
        return [[on_device[place] for place in range(len(tensors))] for on_device in copies]

    def gather(self, tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
        first = tensors[0]
        sizes = list(first.shape)
        sizes[dim] = sum(tensor.size(dim) for tensor in tensors)
        on_host = destination == -1
        device = torch.device("cpu") if on_host else _cuda(CARD.index if destination is None else destination)
        out = _gather_out(tensors, torch.empty(sizes, dtype=first.dtype, device=device), dim)
        if on_host and _is_gradient_without_data():
            return without_data(out, self._machine.ledger, "gradients")
        return out


def _is_gradient_without_data() -> bool:
    """The batch that was scattered came of parameters on the host, which have no data: autograd wants its gradient
    without, too."""
    node: Any = torch._C._current_autograd_node()
    following, place = node.next_functions[0] if node is not None and node.next_functions else (None, 0)
    return following is not None and following._input_metadata[place].device.type == "meta"


def _chunks(tensors: Sequence[torch.Tensor], most_bytes: int) -> list[list[int]]:
    """take_tensors in torch/csrc/utils/tensor_flatten.cpp: places of the tensors that go together."""
    groups: dict[torch.dtype, list[int]] = {}
    sizes: dict[torch.dtype, int] = {}
    full = []
    for place, tensor in enumerate(tensors):
        kind = tensor.dtype
        groups.setdefault(kind, []).append(place)
        sizes[kind] = sizes.get(kind, 0) + tensor.numel() * tensor.element_size()
        if sizes[kind] >= most_bytes:
            full.append(groups.pop(kind))
            sizes[kind] = 0
    return full + list(groups.values())


def _cuda(device: int) -> torch.device:
    return torch.device("cuda", CARD.index if device < 0 else device)


def _scatter(
    tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Any = None, dim: int = 0, streams: Any = None
) -> tuple[torch.Tensor, ...]:
    with torch._C.DisableTorchFunctionSubclass():  # a subclass of the program's goes into C++ as a plain tensor
        chunks = tensor.split(chunk_sizes, dim) if chunk_sizes is not None else tensor.chunk(len(devices), dim)
    scattered = []
    for chunk, device, stream in itertools.zip_longest(chunks, devices[: len(chunks)], streams or ()):
        if chunk is None:
            break
        with torch.cuda.device(device), nullcontext() if stream is None else torch.cuda.stream(stream):
            scattered.append(chunk.to(_cuda(device), non_blocking=True))
    return tuple(scattered)


def _scatter_out(
    tensor: torch.Tensor, outs: Sequence[torch.Tensor], dim: int = 0, streams: Any = None
) -> tuple[torch.Tensor, ...]:
    for chunk, out in zip(tensor.split([out.size(dim) for out in outs], dim), outs, strict=True):
        out.copy_(chunk, non_blocking=True)
    return tuple(outs)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int = 0) -> torch.Tensor:
    for part, tensor in zip(out.split([tensor.size(dim) for tensor in tensors], dim), tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    return out
