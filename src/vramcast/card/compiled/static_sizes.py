"""Arithmetic of sizes and indices, for which Inductor asks sympy: where all are numbers Python answers, and what was
simplified once is not simplified again for the next layer, nor for the next graph."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import sympy  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches


def install(put: Patches) -> None:
    from torch._inductor import ir, sizevars, utils
    from torch._inductor.sizevars import SizeVarAllocator as Sizes

    for name, compare in _COMPARISONS.items():
        put.set(Sizes, name, _known(getattr(Sizes, name), compare))
    for name, compare in _CHECKS.items():
        put.set(Sizes, name, _checked(getattr(Sizes, name), compare))
    put.set(Sizes, "simplify", _simplified(Sizes.simplify))
    for name in ("_simplify_with_ranges", "_simplify_loops_impl"):
        put.set(Sizes, name, _once_for_all_graphs(getattr(Sizes, name)))
    put.set(sizevars, "_join_dimensions_cached", _joined(sizevars._join_dimensions_cached))
    put.set(ir.IRNode, "is_zero_elements", _without_elements(ir.IRNode.is_zero_elements))
    put.everywhere("sympy_subs", utils.sympy_subs, _substituted(utils.sympy_subs))
    contiguous = ir.is_contiguous_strides_for_shape
    put.everywhere("is_contiguous_strides_for_shape", contiguous, _contiguous(contiguous))


def number(value: Any) -> int | None:
    """A size that does not vary, as Python's."""
    if type(value) is int:
        return value
    return int(value.p) if isinstance(value, sympy.Integer) else None


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "statically_known_equals": operator.eq,
    "statically_known_leq": operator.le,
    "statically_known_geq": operator.ge,
    "statically_known_lt": operator.lt,
    "statically_known_gt": operator.gt,
    "statically_known_multiple_of": lambda numerator, denominator: denominator != 0 and numerator % denominator == 0,
}
_CHECKS: dict[str, Callable[[int, int], bool]] = {"check_leq": operator.le, "check_lt": operator.lt}


def _known(original: Callable[..., bool], compare: Callable[[int, int], bool]) -> Callable[..., bool]:
    answers: dict[Any, bool] = {}

    @functools.wraps(original)
    def known(sizes: Any, left: Any, right: Any) -> bool:
        a, b = number(left), number(right)
        if a is not None and b is not None:
            return compare(a, b)
        if sizes.replacements or sizes.shape_env.var_to_range:
            return original(sizes, left, right)
        key = (left, right)  # of a graph without sizes that vary nothing else is known
        if key not in answers:
            answers[key] = original(sizes, left, right)
        return answers[key]

    return known


def _checked(original: Callable[..., None], compare: Callable[[int, int], bool]) -> Callable[..., None]:
    @functools.wraps(original)
    def check(sizes: Any, left: Any, right: Any) -> None:
        a, b = number(left), number(right)
        if a is None or b is None or not compare(a, b):
            original(sizes, left, right)

    return check


def _simplified(original: Callable[..., Any]) -> Callable[..., Any]:
    expand = functools.cache(sympy.expand)

    @functools.wraps(original)
    def simplify(sizes: Any, expr: Any) -> Any:
        if isinstance(expr, sympy.Integer):
            return expr
        if not isinstance(expr, sympy.Expr):
            return original(sizes, expr)
        expanded = expand(expr)
        return expanded.xreplace(sizes.replacements) if sizes.replacements else expanded

    return simplify


def _once_for_all_graphs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of a graph without sizes that vary nothing is known but the arguments."""
    known: dict[Any, Any] = {}

    @functools.wraps(original)
    def simplify(sizes: Any, *args: Any) -> Any:
        if sizes.replacements or sizes.shape_env.var_to_range:
            return original(sizes, *args)
        key = tuple(tuple(arg.items() if isinstance(arg, dict) else arg) if _is_many(arg) else arg for arg in args)
        if key not in known:
            known[key] = original(sizes, *args)
        return known[key]

    return simplify


def _joined(original: Callable[..., Any]) -> Callable[..., Any]:
    """Terms of an index that belong together: each is a remainder, and another one of the same division is there."""
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    @functools.wraps(original)
    def join(expr: Any) -> Any:
        remainders = sum(term.has(ModularIndexing) for term in expr.args)
        return original(expr) if remainders > 1 or expr.has(FloorDiv) else expr

    return join


def _is_many(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _without_elements(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def is_zero_elements(node: Any) -> bool:
        elements = number(node.get_numel())
        return original(node) if elements is None else elements == 0

    return is_zero_elements


def _substituted(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    @functools.wraps(original)
    def sympy_subs(expr: Any, replacements: dict[Any, Any]) -> Any:
        if not isinstance(expr, sympy.Expr):
            return original(expr, replacements)
        if isinstance(expr, sympy.Integer):
            return expr
        # A number of Python's equals sympy's, and the result differs.
        key = (expr, *((old, new, type(new)) for old, new in replacements.items()))
        found = known.get(key)
        if found is None:
            found = known[key] = original(expr, replacements)
        return found

    return sympy_subs


def _contiguous(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def is_contiguous_strides_for_shape(stride: Sequence[Any], shape: Sequence[Any]) -> bool:
        expected = at_least = 1
        for size, step in reversed([(number(x), number(y)) for x, y in zip(shape, stride, strict=False)]):
            if size is None or step is None:
                return original(stride, shape)
            if size == 1:
                continue
            if step not in (expected, at_least):
                return False
            expected *= size
            at_least *= max(1, size)
        return True

    return is_contiguous_strides_for_shape
