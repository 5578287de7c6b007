"""Names of torch (and of a few libraries) that stand for something else while the virtual GPU is active."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


class Patches:
    """Sets attributes and puts them back, in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, bool]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        had = name in vars(owner)
        self._undo.append((owner, name, vars(owner).get(name), had))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._undo:
            owner, name, value, had = self._undo.pop()
            if had:
                setattr(owner, name, value)
            else:
                delattr(owner, name)


def backward_runner(original: Callable[..., Any], enter: Callable[[], Any]) -> Callable[..., Any]:
    """The autograd engine, with our modes on again: they are off inside the handler that called it."""

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        with enter():
            return original(*args, **kwargs)

    return _engine_run_backward


def hooks_with_modes(original: Callable[..., None], mode: Callable[[], Any]) -> Callable[..., None]:
    """saved_tensors_hooks.__init__ whose hooks see the card: autograd calls them from inside our handlers."""

    def with_mode(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            if torch._C._len_torch_function_stack():
                return hook(value)
            with mode():
                return hook(value)

        return run

    def __init__(self: Any, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        original(self, with_mode(pack_hook), with_mode(unpack_hook))

    return __init__


def groups_on_the_card(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tensor lists grouped by device and dtype: foreach code asks the group's device, not the tensors'."""

    def group(tensors: Any, with_indices: bool = False) -> Any:
        groups = original(tensors, with_indices)
        cuda = torch.device("cuda", 0)
        return {
            (cuda if key[0].type == "meta" else key[0], *key[1:]): value for key, value in groups.items()
        }

    return group


def compile_as_eager(note: Callable[[str], None]) -> Callable[..., Any]:
    """torch.compile that gives the function back as it is, and says so."""

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda inner: compile(inner, **options)
        note(getattr(model, "__qualname__", type(model).__name__))
        return model

    return compile


_Generator = torch.Generator


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


class Generator(metaclass=_GeneratorType):
    """torch.Generator for any device: a generator for the card draws on the host, its numbers are not looked at."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:  # type: ignore[misc]
        return _Generator("cpu")


def guard_triton(patches: Patches, refuse: Callable[[str], Exception]) -> None:
    """A Triton kernel has no rule: launching one is an error that names it."""
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise refuse(getattr(self, "__name__", None) or getattr(getattr(self, "fn", None), "__name__", "a kernel"))

    patches.set(jit.JITFunction, "run", run)
