"""Where the program is: which module, which phase, which step. Hooks that PyTorch offers, nothing traced."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optimizer_module

from vramcast.virtual_gpu.ledger import BUFFERS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS, Ledger
from vramcast.virtual_gpu.storages import GPU, block_of

_LAST_SEQUENCE = 2**64 - 1  # AccumulateGrad nodes: no forward op made them


class Position:
    """Follows forward calls of modules, the autograd engine and optimizer steps."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        builder = ledger.builder
        self._forward = builder.intern_phase("forward")
        self._backward = builder.intern_phase("backward")
        self._optimizer = builder.intern_phase("optimizer")
        self._setup = builder.intern_phase("setup")
        self._names: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        self._roots: list[torch.nn.Module] = []
        self._stack: list[int] = []
        self._outside = builder.intern_module("")
        # Sequence numbers of autograd nodes at which the current module changed: a backward op is booked on the
        # module whose forward made its node.
        self._changes: list[int] = [-1]
        self._change_module: list[int] = [self._outside]
        self._last_node: Any = None
        self._last_module = self._outside
        self.backward_depth = 0
        self.steps: dict[int, int] = {}
        self.on_step: Callable[[dict[int, int]], None] = lambda steps: None
        self._optimizers: dict[int, Any] = {}
        self._handles: list[Any] = []

    def install(self) -> None:
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
            optimizer_module.register_optimizer_step_pre_hook(self._enter_optimizer),
            optimizer_module.register_optimizer_step_post_hook(self._leave_optimizer),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._roots.clear()
        self._optimizers.clear()

    # -- modules --------------------------------------------------------------------------------------------

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            name = self._learn_names(module)
        if not self._stack and not self.backward_depth:
            self.ledger.phase = self._forward
        self._stack.append(name)
        self._changed(name)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._changed(self._stack[-1] if self._stack else self._outside)

    def _changed(self, name: int) -> None:
        self.ledger.module = name
        number = torch._C._autograd._get_sequence_nr()
        if self._changes[-1] == number:
            self._change_module[-1] = name
        else:
            self._changes.append(number)
            self._change_module.append(name)

    def _learn_names(self, module: torch.nn.Module) -> int:
        """Name a module met for the first time, and all below it."""
        intern = self.ledger.builder.intern_module
        prefix = type(module).__name__
        if self._stack:  # made on the fly inside another module
            prefix = f"{self._paths[self._stack[-1]]}.{prefix}"
        else:
            taken = sum(type(root) is type(module) for root in self._roots)
            if taken:
                prefix = f"{prefix}#{taken + 1}"
        for path, child in module.named_modules():
            full = f"{prefix}.{path}" if path else prefix
            name = self._names.setdefault(id(child), intern(full))
            self._paths.setdefault(name, full)
        if not self._stack:
            self._roots.append(module)
            self._classify_module(module)
        return self._names[id(module)]

    # -- backward -------------------------------------------------------------------------------------------

    def locate(self, ledger: Ledger) -> None:
        """Called for each op: in backward, the module is that of the autograd node that runs."""
        if self.backward_depth and not self._stack:
            node = torch._C._current_autograd_node()
            if node is not self._last_node:
                self._last_node = node
                if node is not None:
                    number = node._sequence_nr()
                    if number != _LAST_SEQUENCE:
                        at = bisect_right(self._changes, number) - 1
                        self._last_module = self._change_module[at]
            ledger.module = self._last_module

    def enter_backward(self) -> int:
        phase = self.ledger.phase
        self.backward_depth += 1
        self.ledger.phase = self._backward
        return phase

    def leave_backward(self, phase: int) -> None:
        self.backward_depth -= 1
        self._last_node = None
        self.ledger.phase = phase
        if not self.backward_depth:
            self.ledger.module = self._stack[-1] if self._stack else self._outside

    # -- optimizer ------------------------------------------------------------------------------------------

    def _enter_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        self._classify_parameters(optimizer)
        self.ledger.phase = self._optimizer
        self.ledger.module = self._outside

    def _leave_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._classify_state(optimizer)
        self.ledger.phase = self._forward
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        self.ledger.builder.mark("step")
        self.on_step(self.steps)

    # -- what a block is ------------------------------------------------------------------------------------

    def classify(self) -> None:
        """Say for every live block of a known module or optimizer what it is."""
        for root in self._roots:
            self._classify_module(root)
        for optimizer in self._optimizers.values():
            self._classify_parameters(optimizer)
            self._classify_state(optimizer)

    def _classify_module(self, root: torch.nn.Module) -> None:
        for parameter in root.parameters():
            self._mark(parameter, WEIGHTS)
            if parameter.grad is not None:
                self._mark(parameter.grad, GRADIENTS)
        for buffer in root.buffers():
            self._mark(buffer, BUFFERS)

    def _classify_parameters(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._mark(parameter, WEIGHTS)
                if parameter.grad is not None:
                    self._mark(parameter.grad, GRADIENTS)

    def _classify_state(self, optimizer: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._mark(value, OPTIMIZER_STATE)

    def _mark(self, tensor: torch.Tensor, kind: int) -> None:
        with torch._C.DisableTorchFunction():
            block = block_of(tensor) if tensor.is_meta else None
            if block is not None and block.device == GPU and block.block_id >= 0:
                self.ledger.builder.set_kind(block.block_id, kind)
