"""Copies of modules, optimizers and batches for the virtual card: the same shapes, no data, nothing shared.

A copy is made by `copy.deepcopy` while the virtual card is active, with one change: a tensor, wherever it is found,
becomes one without data. Neither the original nor the real card is touched, but for values that programs look at:
small parameters, buffers and the batch are read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import CannotPredict
from vramcast.card.device.containers import all_of
from vramcast.card.device.patches import Patches
from vramcast.features.guard.accelerate import shared_states

_VALUES_BELOW = 65
"""Elements up to which a parameter keeps its values on the virtual card."""
_LARGEST_VALUES_BYTES = 1 << 28


class Copies:
    """Made where the originals are, in front of the virtual card; `make` is called on it, once for each run."""

    def __init__(self, objects: list[Any], *, on_host: bool = False) -> None:
        """`on_host`: what runs the copies brings them to the card itself."""
        self._objects = objects
        self._on_host = on_host
        modules = self._modules = list(all_of(nn.Module, objects))
        self._buffers = {id(buffer) for module in modules for buffer in module.buffers()}
        handed_over = list(_tensors(objects))
        self._handed_over = {id(tensor) for tensor in handed_over if tensor.dim()}
        tensors = [*(p for module in modules for p in module.parameters()), *handed_over]
        # Where the model is not on a card yet, it goes there with its batch, as training would have it.
        self._all_to_card = not any(tensor.is_cuda for tensor in tensors)
        self._parameters: list[tuple[nn.Parameter, bool]] = []
        """Parameters of the last `make`, and whether each goes to the card."""

    def make(self) -> Any:
        """The modules first, as a program does, then the rest."""
        memo: dict[int, Any] = {}
        self._parameters = []
        with self._tensors_without_data():
            try:
                for module in self._modules:
                    self._to_card(copy.deepcopy(module, memo))
                made = copy.deepcopy(self._objects, memo)
            except (TypeError, AttributeError, RuntimeError) as error:
                raise CannotPredict(f"what was handed over cannot be copied: {error}") from error
        for parameter, goes in self._parameters:  # those of modules that lie hidden in other objects
            if goes:
                parameter.data = parameter.data.to("cuda")
        return made

    def _to_card(self, module: nn.Module) -> None:
        """Move it as a whole where all of it goes to the card; some of its parts may stay."""
        on_card = {id(parameter) for parameter, goes in self._parameters if goes}
        if not self._on_host and all(id(parameter) in on_card for parameter in module.parameters()):
            module.to("cuda")

    @contextmanager
    def _tensors_without_data(self) -> Iterator[None]:
        def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
            known = memo.get(id(tensor))
            if known is None:
                known = memo[id(tensor)] = self._copy(tensor)
            return known

        patches = Patches()
        try:
            for owner in (torch.Tensor, nn.Parameter):
                patches.set(owner, "__deepcopy__", copied)
            for state in shared_states():
                patches.set(state, "__deepcopy__", lambda state, memo: state)
            yield
        finally:
            patches.undo()

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer):
            raise CannotPredict(f"a {type(tensor).__name__} cannot be copied without its data")
        is_parameter = isinstance(tensor, nn.Parameter)
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            source = tensor.detach()
            moves = self._all_to_card and (is_parameter or id(tensor) in self._handed_over)
            goes = (source.is_cuda or moves) and not self._on_host
            size = source.numel() * source.element_size()
            keeps = source.numel() < _VALUES_BELOW if is_parameter else size <= _LARGEST_VALUES_BYTES
            if keeps:
                host = source.cpu().clone() if source.is_cuda else source.clone()
            else:  # memory that is never touched costs nothing
                host = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype)
        if is_parameter:
            parameter = nn.Parameter(host, requires_grad=tensor.requires_grad)
            self._parameters.append((parameter, goes))
            return parameter
        if goes and id(tensor) not in self._buffers:
            host = host.to("cuda")
        return host.requires_grad_(tensor.requires_grad) if tensor.is_leaf else host


def bytes_on_card(objects: Any) -> int:
    """What the tensors in `objects` take on the real card."""
    seen: dict[int, int] = {}
    tensors = [t for m in all_of(nn.Module, objects) for t in (*m.parameters(), *m.buffers())]
    for tensor in (*tensors, *_tensors(objects)):
        for held in (tensor, tensor.grad if tensor.is_leaf else None):
            if held is not None and held.is_cuda:
                storage = held.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def _tensors(objects: Any) -> Iterator[torch.Tensor]:
    """Tensors in containers and optimizers."""
    yield from all_of(torch.Tensor, objects)
    for optimizer in all_of(torch.optim.Optimizer, objects):
        yield from all_of(torch.Tensor, [group["params"] for group in optimizer.param_groups])
        yield from all_of(torch.Tensor, list(optimizer.state.values()))
