"""Checks that a program makes of a value which is not known here: `assert boxes_in_order.all()`, `if not ok: raise`.

Made-up numbers do not know what the program has proved about them, so a check may fail that never fails on a card. A
check is there to pass: where the program reads a made-up truth value for one, it is told what lets it go on.
"""

from __future__ import annotations

import ast
import dis
import functools
import itertools
import linecache
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType

import torch

_OWN = str(Path(__file__).parents[2])
_PLUMBING = tuple(
    str(Path(torch.__file__).parent / name) for name in ("_ops.py", "_tensor.py", "overrides.py", "utils/_")
)
"""Files of torch through which a read passes."""

_TESTS = ("POP_JUMP", "JUMP_IF", "TO_BOOL", "UNARY_NOT")
"""Instructions that ask for the truth of the value computed before."""

_ROUNDING = frozenset({"int", "round", "ceil", "floor", "range"})
"""Functions of one argument that make a whole number of it."""

Place = tuple[int, int, int, int]
"""First line, last line, first column and last column of an expression, as code objects have them."""


def wanted() -> bool | None:
    """The truth value that lets the check pass for which the program reads a value now; None if it is for no check."""
    frame = _reader()
    return None if frame is None else _wanted_at(frame.f_code, frame.f_lasti // 2)


def decides_rounds() -> bool:
    """Whether the program reads a value now to see whether a `while` loop goes on."""
    frame = _reader()
    return frame is not None and _decides_rounds(frame.f_code.co_filename, frame.f_lineno)


def _reader() -> FrameType | None:
    """The frame that reads a value."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OWN, *_PLUMBING)):
        frame = frame.f_back
    return None if frame is None or frame.f_lasti < 0 else frame


@functools.lru_cache(maxsize=4096)
def _decides_rounds(filename: str, line: int) -> bool:
    tree = _tree(filename)
    loops = (node.test for node in ast.walk(tree) if isinstance(node, ast.While)) if tree is not None else ()
    return any(test.lineno <= line <= (test.end_lineno or test.lineno) for test in loops)


def is_rounded() -> bool:
    """Whether the number that the program reads now becomes a whole one in the same expression, as sizes do."""
    frame = _reader()
    return frame is not None and _is_rounded(frame.f_code, frame.f_lasti // 2)


@functools.lru_cache(maxsize=4096)
def _is_rounded(code: CodeType, instruction: int) -> bool:
    place = next(itertools.islice(code.co_positions(), instruction, None), None)
    tree = _tree(code.co_filename)
    if place is None or None in place or tree is None:
        return False
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1)
    return any(
        getattr(node.func, "attr", getattr(node.func, "id", None)) in _ROUNDING and _covers(_place(node), place)  # type: ignore[arg-type]
        for node in calls
    )


@functools.lru_cache(maxsize=4096)
def _wanted_at(code: CodeType, instruction: int) -> bool | None:
    # A jump's own place is not to be relied on: what it tests was computed just before.
    computed = dis.opname[code.co_code[2 * instruction]].startswith(_TESTS)
    place = next(itertools.islice(code.co_positions(), instruction - computed, None), None)
    if place is None or None in place:
        return None
    for test, passes_if in _checks(code.co_filename):
        if _covers(_place(test), place):  # type: ignore[arg-type]
            return _in_expression(test, place, passes_if, computed=computed)  # type: ignore[arg-type]
    return None


@functools.lru_cache(maxsize=256)
def _checks(filename: str) -> Sequence[tuple[ast.expr, bool]]:
    """The conditions of a file's checks, and the truth value with which each passes."""
    tree = _tree(filename)
    return () if tree is None else tuple(_checks_in(tree))


@functools.lru_cache(maxsize=64)
def _tree(filename: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _checks_in(tree: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test, True
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if not isinstance(statements, list):
                continue
            for index, statement in enumerate(statements):
                if isinstance(statement, ast.If):
                    passes_if = _passes_if(statement, statements[index + 1 :])
                    if passes_if is not None:
                        yield statement.test, passes_if


def _passes_if(statement: ast.If, following: list[ast.stmt]) -> bool | None:
    """`if` raises, its `else` raises, or it returns and what follows raises."""
    if _raises(statement.body):
        return False
    if _raises(statement.orelse):
        return True
    returns = isinstance(statement.body[-1], ast.Return)
    return True if returns and not statement.orelse and _raises(following) else None


def _raises(statements: list[ast.stmt]) -> bool:
    for statement in statements:
        if isinstance(statement, ast.Raise):
            return True
        if isinstance(statement, (ast.Return, ast.Continue, ast.Break, ast.If, ast.For, ast.While, ast.Try)):
            return False
    return False


def _in_expression(test: ast.expr, place: Place, passes_if: bool, *, computed: bool = False) -> bool | None:
    """The value of a part of the condition with which all of it passes. `computed`: the part ends at that place."""
    while True:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, passes_if = test.operand, not passes_if
        elif isinstance(test, ast.BoolOp):
            part = next((value for value in test.values if _covers(_place(value), place)), None)
            if part is None:
                return None
            test = part
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "bool" and test.args:
            if not _covers(_place(test.args[0]), place):
                return passes_if if _place(test) == place else None
            test = test.args[0]
        else:
            return passes_if if _covers(place, _place(test)) or (computed and _ends_with(test, place)) else None


def _ends_with(node: ast.expr, place: Place) -> bool:
    _, line, _, column = _place(node)
    return (line, column) == (place[1], place[3])


def _place(node: ast.expr) -> Place:
    return node.lineno, node.end_lineno or node.lineno, node.col_offset, node.end_col_offset or node.col_offset


def _covers(outer: Place, inner: Place) -> bool:
    return (outer[0], outer[2]) <= (inner[0], inner[2]) and (inner[1], inner[3]) <= (outer[1], outer[3])
