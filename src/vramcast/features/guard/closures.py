"""A function as it would be had its model, optimizer and the like been others: what it reaches by itself is exchanged.

A training step mostly uses names from around it. Run on the virtual card as it is, it would change the real model; so
the function, and those of the same file that it calls, are made once more with copies in place of what holds tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from vramcast.base.errors import UsageError
from vramcast.features.guard.accelerate import accelerators_in

_LOOKED_AT = 64
"""Items of a list or dictionary that are looked at for tensors."""
_DEPTH = 3


def reached_by(function: Callable[..., Any]) -> dict[str, Any]:
    """Name → value of all that `function` uses from around it."""
    values: dict[str, Any] = {}
    for user in _functions(function):
        values.update(_names(user))
    return values


def to_copy(function: Callable[..., Any]) -> list[Any]:
    """The objects it reaches that a step could change: those that hold tensors."""
    reached = reached_by(function)
    for name, value in reached.items():
        if isinstance(value, GeneratorType) or type(value).__name__.endswith("DataLoaderIter"):
            raise UsageError(f"guard: the step takes from {name!r}, which can only be read once: hand a batch over")
    held = {id(value): value for value in reached.values() if holds_tensors(value)}
    return list(held.values())


def holds_tensors(value: Any, depth: int = _DEPTH) -> bool:
    if issubclass(type(value), (nn.Module, torch.optim.Optimizer, torch.Tensor, torch.amp.grad_scaler.GradScaler)):
        return True
    only_read = isinstance(value, (type, ModuleType, FunctionType, Dataset, DataLoader))
    if only_read or depth == 0 or accelerators_in([value]):
        return False
    if isinstance(value, Mapping):
        return any(holds_tensors(content, depth - 1) for content in list(value.values())[:_LOOKED_AT])
    if isinstance(value, (list, tuple)):
        return any(holds_tensors(content, depth - 1) for content in value[:_LOOKED_AT])
    held = getattr(value, "__dict__", None)
    return type(held) is dict and any(holds_tensors(content, depth - 1) for content in held.values())


def rebuilt(function: Callable[..., Any], copies: Mapping[int, Any]) -> Callable[..., Any]:
    """`function` with `copies` (by the id of the original) in place of what it reaches."""
    made: Callable[..., Any] = _Rebuild(copies).of(function)
    return made


class _Rebuild:
    def __init__(self, copies: Mapping[int, Any]) -> None:
        self._copies = copies
        self._functions: dict[int, FunctionType] = {}
        self._cells: dict[int, CellType] = {}
        self._globals: dict[int, dict[str, Any]] = {}

    def of(self, value: Any) -> Any:
        if id(value) in self._copies:
            return self._copies[id(value)]
        if isinstance(value, MethodType):
            return MethodType(self.of(value.__func__), self.of(value.__self__))
        return self._function(value) if isinstance(value, FunctionType) else value

    def _function(self, function: FunctionType) -> FunctionType:
        known = self._functions.get(id(function))
        if known is not None:
            return known
        namespace = self._globals.setdefault(id(function.__globals__), dict(function.__globals__))
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        made = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, cells or None)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        self._functions[id(function)] = made
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            for content in _content(original):
                cell.cell_contents = self._used(content, function)
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                namespace[name] = self._used(function.__globals__[name], function)
        return made

    def _cell(self, cell: CellType) -> CellType:
        return self._cells.setdefault(id(cell), CellType())

    def _used(self, value: Any, by: FunctionType) -> Any:
        return self.of(value) if not isinstance(value, FunctionType) or _same_file(value, by) else value


def _functions(function: Any) -> Iterator[FunctionType]:
    """`function` and the functions of its file that it uses, directly or indirectly."""
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if isinstance(current, MethodType):
            current = current.__func__
        if not isinstance(current, FunctionType) or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [v for v in _names(current).values() if isinstance(v, FunctionType) and _same_file(v, current)]


def _names(function: FunctionType) -> dict[str, Any]:
    around = function.__globals__
    values = {name: around[name] for name in _global_names(function.__code__) if name in around}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        for content in _content(cell):
            values[name] = content
    return values


def _global_names(code: CodeType) -> set[str]:
    """Global names that the code uses, including functions and comprehensions inside it. Attribute names are among
    them, which does no harm: a value found under one is only exchanged where it is used."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*(_global_names(constant) for constant in inner))


def _content(cell: CellType) -> Iterator[Any]:
    """The cell's content; nothing for a variable that is not assigned yet."""
    try:
        yield cell.cell_contents
    except ValueError:
        return


def _same_file(function: FunctionType, by: FunctionType) -> bool:
    return function.__globals__ is by.__globals__
