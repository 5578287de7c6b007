"""Shapes as arithmetic over named sizes: "batch", "frames // 4 + 1", "ceil(width / 8)". Nothing is ever evaluated
by Python itself; only what is listed here exists."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

from vramcast.base.errors import UsageError

_LONGEST = 200
_LARGEST = 2**63
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "floor": lambda value: Fraction(math.floor(value)),
    "round": lambda value: Fraction(round(value)),
}
_ONE_ARGUMENT = ("ceil", "floor", "round")
FUNCTIONS = tuple(_FUNCTIONS)
_GRAMMAR = "use whole numbers, names of sizes, + - * / // % **, max, min, ceil, floor, round"


def check(text: str) -> frozenset[str]:
    """The names of sizes that an expression uses; UsageError where it is not one."""
    names: set[str] = set()
    for node in ast.walk(_parse(text)):
        if isinstance(node, ast.Name) and node.id not in _FUNCTIONS:
            names.add(node.id)
    return frozenset(names)


def evaluate(expression: int | str, sizes: Mapping[str, int], key: str) -> int:
    """The whole number above zero that an expression stands for; `key` is named when it cannot be."""
    if isinstance(expression, int):
        return expression
    value = _value(_parse(expression), sizes, expression, key)
    if value.denominator != 1:
        raise UsageError(f"{key}: {expression!r} is {float(value):g}, not a whole number; use // or ceil(...)")
    if value < 1:
        raise UsageError(f"{key}: {expression!r} is {int(value)}; a dimension is at least 1")
    return int(value)


def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise UsageError(f"an expression of {len(text)} characters is too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UsageError(f"{text!r} is not an expression; {_GRAMMAR}") from None
    _check_node(tree, text)
    return tree


def _check_node(node: ast.expr, text: str) -> None:
    match node:
        case ast.Constant(value=value) if type(value) is int and value < _LARGEST:
            return
        case ast.Name():
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS or isinstance(op, ast.Pow):
            _check_node(left, text)
            _check_node(right, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            _check_node(operand, text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            if name in _ONE_ARGUMENT and len(args) != 1:
                raise UsageError(f"{text!r}: {name} takes one value")
            for argument in args:
                _check_node(argument, text)
        case _:
            raise UsageError(f"{text!r} is not an expression; {_GRAMMAR}")


def _value(node: ast.expr, sizes: Mapping[str, int], text: str, key: str) -> Fraction:
    match node:
        case ast.Constant(value=int(value)):
            result = Fraction(value)
        case ast.Name(id=name):
            if name not in sizes:
                raise UsageError(f"{key}: {text!r} needs the size {name!r}: add it under sizes, e.g. {name}: 8")
            result = Fraction(sizes[name])
        case ast.UnaryOp(operand=operand):
            result = -_value(operand, sizes, text, key)
        case ast.Call(func=ast.Name(id=name), args=args):
            result = _FUNCTIONS[name](*(_value(argument, sizes, text, key) for argument in args))
        case ast.BinOp(left=left, op=op, right=right):
            result = _binary(op, _value(left, sizes, text, key), _value(right, sizes, text, key), text, key)
        case _:
            raise AssertionError("checked in _check_node")
    if abs(result) > _LARGEST or result.denominator > _LARGEST:
        raise UsageError(f"{key}: {text!r} is far too large for a dimension, or a part of it")
    return result


def _binary(op: ast.operator, left: Fraction, right: Fraction, text: str, key: str) -> Fraction:
    if isinstance(op, ast.Pow):
        if right.denominator != 1 or not 0 <= right <= 64:
            raise UsageError(f"{key}: {text!r}: the exponent of ** is a whole number from 0 to 64")
        return Fraction(left ** int(right))
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod) and right == 0:
        raise UsageError(f"{key}: {text!r} divides by zero")
    return _OPERATORS[type(op)](left, right)
