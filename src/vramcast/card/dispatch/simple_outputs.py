"""The outputs of a few ops by rule: with sequences of varying length every step brings new shapes, and torch's meta
kernels in Python take up to a millisecond for each.

A rule gives (shape, stride, dtype), or None where the case is not the plain one; torch then works it out, and complains
where arguments do not go together. Elementwise ops need no rule: on dense tensors of one shape, the dtype is all that
has to be learnt from torch, once for each combination of dtypes and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
Rule = Callable[[tuple[Any, ...]], Spec | None]

RULES: dict[str, Rule] = {}
_Tensor = torch.Tensor


def rule(name: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


class SimpleOutputs:
    """One instance per virtual GPU."""

    def __init__(self) -> None:
        self._rules: dict[int, Rule | None] = {}
        self._pointwise: dict[int, bool] = {}
        self._dtypes: dict[Any, torch.dtype] = {}
        """The dtype that an elementwise op returns, by all that it depends on."""

    def known(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spec | None:
        """What `func` would make of arguments that are all plain (KnownCall.exact); None if only torch can tell."""
        if kwargs:
            return None
        number = id(func)
        if number not in self._rules:
            self._rules[number] = RULES.get(str(func))
            self._pointwise[number] = torch.Tag.pointwise in func.tags and len(func._schema.returns) == 1
        made_by = self._rules[number]
        if made_by is not None:
            return made_by(args)
        if not self._pointwise[number]:
            return None
        alike = _alike(number, args)
        if alike is None:
            return None
        dtype = self._dtypes.get(alike[0])
        return None if dtype is None else (alike[1], dense_stride(alike[1]), dtype)

    def learn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Torch has worked it out."""
        if kwargs or not self._pointwise.get(id(func)) or not isinstance(out, _Tensor):
            return
        alike = _alike(id(func), args)
        if alike is not None and out.shape == alike[1] and out.stride() == dense_stride(alike[1]):
            self._dtypes[alike[0]] = out.dtype


def _alike(number: int, args: tuple[Any, ...]) -> tuple[Any, torch.Size] | None:
    """What the dtype of an elementwise op depends on, and the shape; None unless all tensors are dense and of one
    shape."""
    shape: torch.Size | None = None
    key: list[Any] = [number, torch.get_default_dtype()]
    for value in args:
        if isinstance(value, _Tensor):
            if not value.is_meta or value.stride() != dense_stride(value.shape) or not value.dim():
                return None
            if shape is None:
                shape = value.shape
            elif shape != value.shape:
                return None
            key.append(value.dtype)
        elif isinstance(value, (list, tuple)):
            return None
        else:
            key.append((value.__class__, value))
    return None if shape is None else (tuple(key), shape)


def dense_stride(shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _product(left: torch.Tensor, right: torch.Tensor) -> Spec | None:
    if left.dim() != 2 or right.dim() != 2 or left.size(1) != right.size(0) or left.dtype != right.dtype:
        return None
    rows, columns = left.size(0), right.size(1)
    # One row or column: torch may give the other stride another value, which nobody looks at but a cautious reader.
    return ((rows, columns), (columns, 1), left.dtype) if rows > 1 and columns > 1 and left.size(1) > 1 else None


@rule("aten.mm.default")
def _mm(args: tuple[Any, ...]) -> Spec | None:
    return _product(*args) if len(args) == 2 and all(value.is_meta for value in args) else None


@rule("aten.addmm.default")
def _addmm(args: tuple[Any, ...]) -> Spec | None:
    if len(args) != 3 or not all(value.is_meta for value in args):
        return None
    bias, left, right = args
    made = _product(left, right)
    return made if made is not None and bias.shape == (made[0][1],) and bias.dtype == made[2] else None


@rule("aten.bmm.default")
def _bmm(args: tuple[Any, ...]) -> Spec | None:
    left, right = args
    if left.dim() != 3 or right.dim() != 3 or left.dtype != right.dtype or not (left.is_meta and right.is_meta):
        return None
    (batch, rows, inner), (batches, inside, columns) = left.shape, right.shape
    if batch != batches or inner != inside or min(batch, rows, inner, columns) < 2:
        return None
    return (batch, rows, columns), (rows * columns, columns, 1), left.dtype
