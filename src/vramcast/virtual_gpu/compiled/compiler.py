"""Lets Dynamo and Inductor work beside the virtual card."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual_gpu.compiled import fake_cuda
from vramcast.virtual_gpu.compiled.visibility import Visibility
from vramcast.virtual_gpu.patches import Patches

if TYPE_CHECKING:
    from vramcast.virtual_gpu.machine import Machine


class Compiler:
    """One for each virtual card."""

    def __init__(self, patches: Patches, machine: Machine, see: Callable[[], AbstractContextManager[None]]) -> None:
        self._own = Patches()
        """Changes to the compilers themselves, which hold while they run."""
        self._machine = machine
        self.visibility = Visibility(patches, see)
        self._ready = False
        self._exits = ExitStack()

    def install(self) -> None:
        """Called when the card is entered. Most is put off until something is compiled: Inductor is slow to import."""
        from torch._dynamo import convert_frame, guards, trace_rules

        put = self._own
        for name in ("vramcast.virtual_gpu", "vramcast.trace", "vramcast.allocator"):
            trace_rules.add(name)
        wrapper = convert_frame.CatchErrorsWrapper
        put.set(wrapper, "__call__", self._hidden(wrapper.__call__))
        manager = guards.CheckFunctionManager
        put.set(manager, "__init__", self._guards_as_when_run(manager.__init__))

    def remove(self) -> None:
        self._exits.close()
        self._own.undo()
        if self._ready:
            torch._dynamo.reset()
            fake_cuda.remove()
            _forget_functions()

    def prepare(self) -> None:
        """Before the first function is compiled."""
        if self._ready:
            return
        self._ready = True
        _forget_functions()
        from vramcast.virtual_gpu.compiled import inductor

        with self.visibility.hide():
            import torch._inductor.compile_fx

            self._exits.enter_context(inductor.caches_of_our_own())
            fake_cuda.install(self._own, lambda: None)
            inductor.install(self._own, self._machine, self.visibility)

    def _hidden(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(callback: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
            self.prepare()
            with self.visibility.hide():
                return original(callback, frame, cache_entry, frame_state)

        return __call__

    def _guards_as_when_run(self, original: Callable[..., None]) -> Callable[..., None]:
        """Guards compare what they find when the function is called, which is with the card in sight."""

        @functools.wraps(original)
        def __init__(manager: Any, f_code: Any, output_graph: Any, *args: Any, **kwargs: Any) -> None:
            from torch._dynamo.utils import get_torch_function_mode_stack

            before = output_graph.torch_function_mode_stack
            with self.visibility.show():
                output_graph.torch_function_mode_stack = get_torch_function_mode_stack()
                try:
                    original(manager, f_code, output_graph, *args, **kwargs)
                finally:
                    output_graph.torch_function_mode_stack = before

        return __init__


def _forget_functions() -> None:
    """Dynamo's rules for functions of torch, which it looks up once: some of them are others now."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    trace_rules.get_torch_obj_rule_map.cache_clear()
    handlers: Any = TorchInGraphFunctionVariable._get_handlers
    handlers.cache_clear()
