"""Where the program is: which module, which phase, which step. Hooks that PyTorch offers, nothing traced."""

from __future__ import annotations

import functools
import sys
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optimizer_module

from vramcast.allocator.card_streams import place_of
from vramcast.card.device.containers import all_of, stored
from vramcast.card.dispatch.activations import Activations
from vramcast.card.dispatch.ledger import BUFFERS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS, Ledger
from vramcast.card.dispatch.node_streams import LAST_NUMBER, NodeStreams
from vramcast.card.dispatch.storages import GPU, Block, block_of
from vramcast.trace import calls
from vramcast.trace.schema import KINDS

_next_sequence_number = torch._C._autograd._get_sequence_nr


def _without_functions(method: Callable[..., None]) -> Callable[..., None]:
    """Inside, attributes of tensors are read past the program's function modes, which takes a tenth of the time."""

    @functools.wraps(method)
    def run(*args: Any) -> None:
        with torch._C.DisableTorchFunction():
            method(*args)

    return run


class Position:
    """Follows forward calls of modules, the autograd engine and optimizer steps.

    Modules, optimizers and autograd nodes are held by weak reference or not at all: a reference kept here would keep
    memory alive that the real run gives back.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        builder = ledger.builder
        self._forward = builder.intern_phase("forward")
        self._backward = builder.intern_phase("backward")
        self._optimizer = builder.intern_phase("optimizer")
        self._setup = builder.intern_phase("setup")
        self._outside = builder.intern_module("")
        self.activations = Activations(builder, self._outside)
        self._names: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}
        self._named_early: set[int] = set()
        """Modules that were called before anything lay on the card: layers that a model tries out while it is built."""
        self._paths: dict[int, str] = {}
        self._roots: list[weakref.ref[torch.nn.Module]] = []
        self._roots_of_type: Counter[str] = Counter()
        self._stack: list[int] = []
        # Sequence numbers of autograd nodes at which the current module changed: a backward op is booked on the
        # module whose forward made its node.
        self._changes: list[int] = [-1]
        self._change_module: list[int] = [self._outside]
        self._last_number = -1
        self._last_module = self._outside
        self.node_streams = NodeStreams()
        self._stream_of_caller = 0
        self._first_backward_block = 0
        self._first_block_of_node = 0
        self.backward_depth = 0
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._steps: dict[int, int] = {}
        self.steps_done = 0
        """Steps of all optimizers together."""
        self._updated_in_backward = False
        self.on_step: Callable[[list[int]], None] = lambda steps: None
        self.on_forward: Callable[[torch.nn.Module], None] = lambda module: None
        self.on_backward: Callable[[], None] = lambda: None
        self._handles: list[Any] = []
        self._adopted: list[tuple[Any, Any]] = []
        self._optimizer_depth = 0
        self.mark: Callable[..., None] = lambda name, arguments="": None
        """Told where a module is called and where a backward pass or an optimizer step begins and ends."""

        self.log_after = 0
        self.on_log: Callable[[], None] = lambda: None
        """Called when an optimizer has made `log_after` steps."""

    @property
    def in_module(self) -> bool:
        return bool(self._stack)

    @property
    def optimizers(self) -> list[Any]:
        return list(_alive(self._optimizers.values()))

    @property
    def had_optimizer(self) -> bool:
        return bool(self._optimizers)

    @property
    def in_optimizer(self) -> bool:
        return self._optimizer_depth > 0

    def install(self) -> None:
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._enter_module),
            nn_module.register_module_forward_hook(self._leave_module, always_call=True),
            optimizer_module.register_optimizer_step_pre_hook(self._enter_optimizer),
            optimizer_module.register_optimizer_step_post_hook(self._leave_optimizer),
        ]

    def optimizer_init(self, original: Callable[..., None], is_new: Callable[[Any], None]) -> Callable[..., None]:
        """Optimizer.__init__ that lets us know: one that has not stepped yet may still come to it."""

        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            is_new(optimizer)
            maker = _optimizer_creating(optimizer)
            if maker is not None:
                self._adopt_optimizer(maker)
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            if maker is None:
                self._steps[id(optimizer)] = 0

        return __init__

    def _adopt_optimizer(self, optimizer: Any) -> None:
        """One that is made of others and is not initialised as an optimizer itself (torchao's CPUOffloadOptimizer)
        has no hooks: its steps are those that count, not the many inside them."""
        kind = type(optimizer)
        if hasattr(optimizer, "_optimizer_step_pre_hooks") or hasattr(kind.step, "vramcast"):
            return
        step = kind.step

        @functools.wraps(step)
        def counted(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._enter_optimizer(optimizer, args, kwargs)
            try:
                return step(optimizer, *args, **kwargs)
            finally:
                self._leave_optimizer(optimizer, args, kwargs)

        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        self._steps[id(optimizer)] = 0
        counted.vramcast = True  # type: ignore[attr-defined]
        kind.step = counted
        self._adopted.append((kind, step))

    def forget_steps(self) -> None:
        """Forget the steps made so far: they were another process's."""
        self._steps.clear()
        self.steps_done = 0

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for kind, step in self._adopted:
            kind.step = step
        self._adopted = []

    # -- modules --------------------------------------------------------------------------------------------

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        known = self._names.get(id(module))
        name = known[1] if known is not None and known[0]() is module else self._learn_names(module)
        if not self._stack:
            if self.backward_depth:
                self.activations.begin_recompute()
            else:
                self.ledger.phase = self._forward
                self.ledger.host.begin()
                self.on_forward(module)
        self._stack.append(name)
        self._changed(name)
        self.mark(calls.MODULE)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
            if not self._stack and self.backward_depth:
                self.activations.end_recompute()
        self._changed(self._stack[-1] if self._stack else self._outside)

    def _changed(self, name: int) -> None:
        self.ledger.module = name
        number = _next_sequence_number()
        if self._changes[-1] == number:
            self._change_module[-1] = name
        else:
            self._changes.append(number)
            self._change_module.append(name)

    def _learn_names(self, module: torch.nn.Module) -> int:
        """Name a module met for the first time, and all below it."""
        compiled = getattr(module, "_orig_mod", None)  # torch.compile's wrapper keeps out of the names
        prefix = type(module if compiled is None else compiled).__name__
        if self._stack:  # made on the fly inside another module
            prefix = f"{self._paths[self._stack[-1]]}.{prefix}"
        else:
            self._roots_of_type[prefix] += 1
            if self._roots_of_type[prefix] > 1:
                prefix = f"{prefix}#{self._roots_of_type[prefix]}"
        self.name_module(module, prefix, is_root=not self._stack)
        if not self.ledger.builder.n_events:
            self._named_early.update(map(id, module.modules()))
        return self._names[id(module)][1]

    def name_module(self, module: torch.nn.Module, prefix: str, *, is_root: bool = True) -> None:
        """Give a module and all below it their names; those that have one already keep it, unless they were called
        alone before anything lay on the card."""
        intern = self.ledger.builder.intern_module
        for path, child in module.named_modules():
            known = self._names.get(id(child))
            if known is None or known[0]() is not child or id(child) in self._named_early:
                self._named_early.discard(id(child))
                path = ".".join(part for part in path.split(".") if part != "_orig_mod")
                full = f"{prefix}.{path}" if path else prefix
                name = intern(full)
                self._names[id(child)] = (weakref.ref(child), name)
                self._paths[name] = full
        if is_root:
            self._roots.append(weakref.ref(module))
            self._classify_module(module)

    # -- backward -------------------------------------------------------------------------------------------

    def locate(self, ledger: Ledger) -> None:
        """Called for each op: in backward, the module is that of the autograd node that runs."""
        if self.backward_depth and not self._stack:
            node = torch._C._current_autograd_node()
            if node is not None:
                number = node._sequence_nr()
                if number != self._last_number and number != LAST_NUMBER:
                    self._last_number = number
                    self._first_block_of_node = ledger.builder.n_blocks
                    self._last_module = self._change_module[bisect_right(self._changes, number) - 1]
                if self.node_streams.several:
                    self._take_stream_of(node)
            ledger.module = self._last_module

    def follow_stream(self) -> None:
        """Called where the program asks for the current stream: in backward, a hook may before any op runs."""
        if self.backward_depth and self.node_streams.several:
            node = torch._C._current_autograd_node()
            if node is not None:
                self._take_stream_of(node)

    def made_in_backward(self, block: int) -> bool:
        """Whether the backward pass that runs now has made a block."""
        return block >= self._first_backward_block

    def is_of_backward(self, block: int) -> bool:
        """Whether a backward pass, this or an earlier one, has made a block."""
        return block >= 0 and self.ledger.builder.phase_of(block) == self._backward

    def made_by_node(self, block: int) -> bool:
        """Whether the autograd node that runs now has made a block."""
        return self.backward_depth > 0 and block >= self._first_block_of_node

    def _take_stream_of(self, node: Any) -> None:
        stream = self.node_streams.entered(node)
        if stream is not None and place_of(stream) == self.ledger.place:
            self.ledger.stream = stream

    def enter_backward(self, *, fills_gradients: bool) -> int:
        """`fills_gradients`: not torch.autograd.grad, which code calls to compute a loss."""
        if not self.backward_depth:
            self.activations.begin_backward()
            self._stream_of_caller = self.ledger.stream
            self._first_backward_block = self.ledger.builder.n_blocks
            self._optimizer_depth = 0  # a step that failed did not say that it ended
            if fills_gradients:
                self.mark(calls.BACKWARD)
        phase = self.ledger.phase
        self.backward_depth += 1
        self.ledger.phase = self._backward
        return self._forward if phase == self._setup else phase

    def leave_backward(self, phase: int, *, fills_gradients: bool) -> None:
        self.backward_depth -= 1
        if fills_gradients and not self.backward_depth:
            self.mark(calls.BACKWARD_END)
        self._last_number = -1
        self.ledger.phase = phase
        if not self.backward_depth:
            self.activations.end_backward()
            self.node_streams.left()
            self.ledger.use_stream(self._stream_of_caller)
            if not any(self._steps.values()):  # else the optimizers' steps classify the gradients
                for root in _alive(self._roots):
                    self._classify_module(root)
            self.ledger.module = self._stack[-1] if self._stack else self._outside
            if self._updated_in_backward:
                self._updated_in_backward = False
                self._end_step(max(self._steps.values()))
            if not self._stack:
                self.on_backward()

    # -- optimizer ------------------------------------------------------------------------------------------

    def _enter_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        self._classify_parameters(optimizer)
        self._optimizer_depth += 1
        self.ledger.phase = self._optimizer
        self.ledger.module = self._outside
        self.mark(calls.OPTIMIZER, self._name(optimizer))

    def _leave_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._classify_state(optimizer)
        self._optimizer_depth -= 1
        if self._optimizer_depth > 0:
            return  # of an optimizer inside another, which has more to do
        self._optimizer_depth = 0
        self.mark(calls.OPTIMIZER_END, self._name(optimizer))
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if self.backward_depth:  # a hook updates one parameter after the other: the step ends with the pass
            self.ledger.phase = self._backward
            self._updated_in_backward = True
            return
        self.ledger.phase = self._forward
        self._end_step(self._steps[id(optimizer)])

    def _end_step(self, count: int) -> None:
        self.steps_done += 1
        self.ledger.builder.mark("step")
        if count == self.log_after:
            self.on_log()
        self.on_step([count for i, count in self._steps.items() if self._optimizers[i]() is not None])

    def _name(self, optimizer: Any) -> str:
        """Its number of parameters, and its place among all."""
        parameters = sum(len(group["params"]) for group in optimizer.param_groups)
        return f"{parameters} {list(self._optimizers).index(id(optimizer))}"

    # -- what a block is ------------------------------------------------------------------------------------

    def classify(self) -> None:
        """Say for every live block of a known module or optimizer what it is, and for the rest what lifetimes tell."""
        for root in _alive(self._roots):
            self._classify_module(root)
        for optimizer in _alive(self._optimizers.values()):
            self._classify_parameters(optimizer)
            self._classify_state(optimizer)
        self.activations.settle()

    def out_of_memory(self) -> None:
        self.activations.out_of_memory(torch.is_grad_enabled())
        self.classify()

    @_without_functions
    def _classify_module(self, root: torch.nn.Module) -> None:
        seen: set[int] = set()
        for child in root.modules():
            known = self._names.get(id(child))
            owner = known[1] if known is not None and known[0]() is child else None
            for parameter in child._parameters.values():
                if parameter is not None and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._mark_parameter(parameter, owner)
            for buffer in child._buffers.values():
                if buffer is not None:
                    self._mark(buffer, BUFFERS, owner)

    @_without_functions
    def _classify_parameters(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._mark_parameter(parameter, None)

    def _mark_parameter(self, parameter: torch.Tensor, owner: int | None) -> None:
        block = self._mark(parameter, WEIGHTS, owner)
        if owner is None and block is not None:
            owner = self.ledger.builder.module_of(block.block_id)
        if parameter.grad is not None:
            self._mark(parameter.grad, GRADIENTS, owner)
        for tensor in _attached_tensors(parameter):  # scales of quantized weights
            self._mark(tensor, WEIGHTS, owner)

    @_without_functions
    def _classify_state(self, optimizer: Any) -> None:
        for parameter, state in getattr(optimizer, "state", {}).items():
            block = self._block(parameter) if isinstance(parameter, torch.Tensor) else None
            owner = None if block is None else self.ledger.builder.module_of(block.block_id)
            for whole in all_of(torch.Tensor, state):
                for tensor in stored(whole):
                    self._mark(tensor, OPTIMIZER_STATE, owner)

    def mark_weight(self, tensor: torch.Tensor) -> None:
        """A parameter has been given this tensor as its data."""
        self._mark(tensor, WEIGHTS, None)

    def _mark(self, tensor: torch.Tensor, kind: int, owner: int | None) -> Block | None:
        block = self._block(tensor, kind)
        if block is not None:
            self.ledger.builder.set_kind(block.block_id, kind)
            if owner is not None:
                self.ledger.builder.set_module(block.block_id, owner)
        return block

    def _block(self, tensor: torch.Tensor, kind: int | None = None) -> Block | None:
        """The block of a tensor on the card; None if it is elsewhere (on the host it is of this kind) or takes
        nothing."""
        with torch._C.DisableTorchFunction():
            tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, what is on this card
            block = block_of(tensor) if tensor.is_meta else None
        if block is not None and block.host is not None and kind is not None:
            block.host.log.set_kind(block.host.number, KINDS[kind])
        if block is None or block.device != GPU or block.block_id < 0 or block.ledger is not self.ledger:
            return None
        return block


def _optimizer_creating(optimizer: Any) -> Any:
    """The optimizer in whose __init__ this one is made, if there is one."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "__init__":
            maker = frame.f_locals.get("self")
            if maker is not optimizer and isinstance(maker, torch.optim.Optimizer):
                return maker
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _alive(references: Iterable[weakref.ref[Any]]) -> Iterator[Any]:
    for reference in references:
        target = reference()
        if target is not None:
            yield target


def _attached_tensors(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """Tensors in a parameter's own attributes, and one level below (bitsandbytes' quant_state)."""
    for value in vars(parameter).values():
        if isinstance(value, torch.Tensor):
            yield value
        elif hasattr(value, "__dict__"):
            yield from (item for item in vars(value).values() if isinstance(item, torch.Tensor))
