"""What compilers must not see: the modes, hooks and replaced functions that make the card."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as nn_module
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from vramcast.card.dispatch.functions import FunctionMode

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches


class Visibility(threading.local):
    """Whether this thread's code sees the card."""

    def __init__(self, patches: Patches, dispatch: Callable[[], AbstractContextManager[Any]]) -> None:
        """`dispatch`: this thread's dispatch mode."""
        self._patches = patches
        self._dispatch = dispatch
        self._functions: list[Any] | None = None
        """While the card is hidden: the function modes that were active before."""
        self._hooks: list[dict[int, Any]] = []

    @property
    def hidden(self) -> bool:
        return self._functions is not None

    @contextmanager
    def hide(self) -> Iterator[None]:
        """Inside, torch is as it was before the card came, but for torch.cuda."""
        if self._functions is not None:
            yield
            return
        before = _function_modes()
        hooks = [dict(table) for table in _hook_tables()]
        with self._patches.suspended(_is_api), _disable_current_modes():
            self._functions, self._hooks = before, hooks
            _set_function_modes([mode for mode in before if not isinstance(mode, FunctionMode)])
            _set_hooks([{} for _ in hooks])
            try:
                yield
            finally:
                self._functions = None
                _set_hooks(hooks)
                _set_function_modes(before)

    @contextmanager
    def show(self) -> Iterator[None]:
        """Inside `hide`, code that sees the card again: what it allocates is booked."""
        functions = self._functions
        if functions is None:
            yield
            return
        others = _function_modes()
        self._functions = None
        try:
            with self._patches.resumed(), self._dispatch():
                _set_hooks(self._hooks)
                _set_function_modes(functions)
                try:
                    yield
                finally:
                    _set_function_modes(others)
                    _set_hooks([{} for _ in self._hooks])
        finally:
            self._functions = functions


def _is_api(owner: Any, name: str) -> bool:
    """torch.cuda and its kin answer for the named card while something is compiled for it."""
    if owner is torch._C:
        return name != "_group_tensors_by_device_and_dtype"
    if type(owner).__module__.startswith("triton."):  # its driver
        return True
    if owner is threading.Thread:  # one that another thread of the program starts meanwhile sees the card
        return True
    where = str(getattr(owner, "__name__", ""))
    if owner is torch.Tensor:
        return name == "_make_wrapper_subclass"  # autograd asks the driver about one that is on the card for C++
    return where.startswith(("torch.cuda", "torch.accelerator", "torch.backends")) or owner is torch.UntypedStorage


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(index) for index in range(torch._C._len_torch_function_stack())]


def _set_function_modes(modes: list[Any]) -> None:
    for _ in range(torch._C._len_torch_function_stack()):
        torch._C._pop_torch_function_stack()
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)


def keeping_the_card(set_stack: Callable[[list[Any]], None]) -> Callable[[list[Any]], None]:
    """Compiled code that enters or leaves function modes sets the whole stack, as it was seen while the card was
    hidden: the card's own mode stays where it is, above that of a default device, which has to be the lowest."""

    @functools.wraps(set_stack)
    def set_torch_function_mode_stack(stack: list[Any]) -> None:
        own = [mode for mode in _function_modes() if isinstance(mode, FunctionMode)]
        others = [mode for mode in stack if mode not in own]
        lowest = sum(isinstance(mode, DeviceContext) for mode in others[:1])
        set_stack([*others[:lowest], *own, *others[lowest:]])

    return set_torch_function_mode_stack


def _hook_tables() -> list[Any]:
    return [
        nn_module._global_forward_pre_hooks, nn_module._global_forward_hooks,
        nn_module._global_forward_hooks_always_called, nn_module._global_forward_hooks_with_kwargs,
    ]  # fmt: skip


def _set_hooks(contents: list[dict[int, Any]]) -> None:
    for table, content in zip(_hook_tables(), contents, strict=True):
        table.clear()
        table.update(content)
