"""What stands in place of parts of torch while a program runs on the virtual card."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vramcast.card import distributed
from vramcast.card.choices import attention as attention_choice
from vramcast.card.choices import jagged_attention, lbfgs, recurrent
from vramcast.card.choices.autocast import AutocastKernels
from vramcast.card.compiled import Compiler
from vramcast.card.device import cuda_api, host_parameters, paged, patches, profiling
from vramcast.card.device.autograd_thread import AutogradThread
from vramcast.card.device.machine import Machine
from vramcast.card.device.threads import Modes, thread_with_modes
from vramcast.card.dispatch import constructors, foreign
from vramcast.card.dispatch import modes as dispatch
from vramcast.card.dispatch.composites import Composites
from vramcast.card.dispatch.functions import device_context_function
from vramcast.card.dispatch.ledger import AUTOCAST_COPIES, Ledger
from vramcast.card.dispatch.position import Position
from vramcast.card.dispatch.storages import block_of, stand_ins
from vramcast.card.files import checkpoints
from vramcast.card.stand_ins import StandIns
from vramcast.gpus import GpuSpec


class Replacements:
    """Functions, methods and modes: put in place when the card is entered, taken away when it is left."""

    def __init__(
        self,
        gpu: GpuSpec,
        ledger: Ledger,
        position: Position,
        machine: Machine,
        packages: Sequence[str],
        taken_beside_allocator: Callable[[int], int],
    ) -> None:
        """`taken_beside_allocator`: bytes on one of the machine's cards that are not the allocator's."""
        self._gpu, self._ledger, self._position, self._machine = gpu, ledger, position, machine
        self._taken_beside_allocator = taken_beside_allocator
        self._modes = Modes(ledger, machine)
        self._autocast = AutocastKernels(self._mark_autocast_copy)
        self._composites = Composites(machine)
        self._checkpoints = checkpoints.Checkpoints(machine)
        self._autograd_thread = AutogradThread(self._in_autograd_thread)
        self._patches = patches.Patches()
        self._compiler = Compiler(self._patches, machine, lambda: self._modes.dispatch)
        self._packages = StandIns(machine.note, packages)
        machine.as_program = self._as_program
        machine.with_functions = self._with_functions

    def install(self, exits: ExitStack) -> None:
        """Everything is taken away again, in the opposite order, when `exits` closes."""
        exits.callback(self._autograd_thread.close)
        exits.callback(self._patches.undo)
        self._patch_torch()
        exits.callback(self._compiler.remove)
        self._compiler.install()
        exits.callback(self._packages.remove)
        self._packages.install()
        exits.enter_context(patches.without_warning("Using `torch.compile.module.` when there are global hooks"))
        exits.callback(self._position.remove)
        self._position.install()
        exits.callback(self._autocast.remove)
        self._autocast.install()
        exits.enter_context(attention_choice.card_order_in_force(self._gpu.compute_capability))
        exits.callback(self._composites.remove)
        self._composites.install()
        exits.enter_context(self._modes.current())

    def _patch_torch(self) -> None:
        put = self._patches.set
        api = cuda_api.replacements(self._machine, self._gpu.total_memory_bytes, self._taken_beside_allocator)
        cuda_api.install(self._patches, api, self._machine)
        put(torch._C, "_cuda_attach_out_of_memory_observer", self._ledger.out_of_memory_observers.append)
        put(torch.backends.cudnn, "is_available", lambda: True)
        put(torch.backends.cudnn, "is_acceptable", lambda tensor: tensor.device.type == "cuda")
        put(importlib.import_module("torch.backends.cudnn.rnn"), "get_cudnn_mode", recurrent.cudnn_mode)
        put(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
        put(patches.Generator, "active", True)
        put(torch, "Generator", patches.Generator)
        put(
            torch._C,
            "_group_tensors_by_device_and_dtype",
            patches.groups_on_the_card(torch._C._group_tensors_by_device_and_dtype),
        )
        put(torch, "clear_autocast_cache", self._autocast.clear)
        put(
            torch.ops,
            "load_library",
            patches.followed_by(torch.ops.load_library, self._autocast.install_torchvision),
        )
        for name, method in stand_ins(self._ledger).items():
            put(torch.UntypedStorage, name, method)
        constructors.install(self._patches)
        jagged_attention.install(self._patches, self._gpu.compute_capability)
        dispatch.install(self._patches)
        host_parameters.install(self._patches, self._ledger, self._position)
        self._machine.host_draws.install(self._patches)
        batches: Any = torch.utils.data.dataloader._BaseDataLoaderIter
        put(batches, "__next__", self._machine.op_log.while_loading(batches.__next__))
        optimizer = torch.optim.Optimizer
        lbfgs.install(self._patches, self._machine.note)
        is_new = functools.partial(paged.install_for, self._patches, self._ledger)
        put(optimizer, "__init__", self._position.optimizer_init(optimizer.__init__, is_new))
        engine = patches.backward_engine(self._in_backward, self._autograd_thread.run)
        put(torch.autograd.Variable, "_execution_engine", engine)
        hooks = torch.autograd.graph.saved_tensors_hooks
        saving = functools.partial(self._ledger.made_on_host, kind="saved activations")
        mark = self._machine.op_log.mark
        put(hooks, "__init__", patches.hooks_with_modes(hooks.__init__, lambda: self._modes.functions, saving, mark))
        patches.mark_checkpoints_with_reentry(self._patches, mark)
        patches.seen_alike(self._patches)
        profiling.install(self._patches)
        put(
            torch.utils._device.DeviceContext,
            "__torch_function__",
            device_context_function(lambda: self._modes.functions),
        )
        thread_with_modes(self._patches, self._in_thread)
        self._checkpoints.install(self._patches)
        distributed.install(self._patches, self._machine)
        foreign.install(self._patches, self._machine)

    @contextmanager
    def _in_backward(self, fills_gradients: bool) -> Iterator[None]:
        phase = self._position.enter_backward(fills_gradients=fills_gradients)
        try:
            with self._modes.functions:
                yield
        finally:
            self._position.leave_backward(phase, fills_gradients=fills_gradients)

    @contextmanager
    def _as_program(self) -> Iterator[None]:
        with torch._C._EnableTorchFunction(), self._modes.current():
            yield

    @contextmanager
    def _with_functions(self) -> Iterator[None]:
        if torch._C._len_torch_function_stack():
            yield
            return
        with self._modes.functions:
            yield

    @contextmanager
    def _in_thread(self) -> Iterator[None]:
        """A thread that the program starts sees the card too; PyTorch keeps modes by thread."""
        if not self._ledger.open:
            yield
            return
        self._autocast.enter_thread()
        try:
            with self._modes.current():
                yield
        finally:
            self._autocast.leave_thread()

    @contextmanager
    def _in_autograd_thread(self) -> Iterator[None]:
        self._autocast.enter_thread()
        try:
            with self._modes.dispatch:
                yield
        finally:
            self._autocast.leave_thread()

    def _mark_autocast_copy(self, tensor: torch.Tensor) -> None:
        with torch._C.DisableTorchFunction():
            block = block_of(tensor)
        if block is not None and block.block_id >= 0:
            self._ledger.builder.set_kind(block.block_id, AUTOCAST_COPIES)
