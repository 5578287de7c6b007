"""Whether a failed import would be caught."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import FrameType

_MISSING = {"ImportError", "ModuleNotFoundError"}
_ANYTHING = {"Exception", "BaseException"}
_PASS_ON = ("importlib", "_frozen_importlib", "vramcast.", "runpy")
"""Modules whose handlers pass errors on."""


def is_guarded(frame: FrameType | None) -> bool:
    """Whether code on the stack, from this frame outwards, handles a missing package. Around the import itself a
    handler for any error does; further out, one for everything that may go wrong is not about the package."""
    handled = _MISSING | _ANYTHING
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PASS_ON):
            if frame.f_lineno in _guarded_lines(frame.f_code.co_filename, frozenset(handled)):
                return True
            handled = _MISSING
        frame = frame.f_back
    return False


@functools.cache
def _guarded_lines(path: str, handled: frozenset[str]) -> frozenset[int]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return frozenset()
    return frozenset(line for node in ast.walk(tree) for line in _lines_of(node, handled))


def _lines_of(node: ast.AST, handled: frozenset[str]) -> Iterator[int]:
    if isinstance(node, ast.Try) and any(_catches(handler, handled) for handler in node.handlers):
        for statement in node.body:
            yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    elif isinstance(node, (ast.With, ast.AsyncWith)) and any("suppress" in ast.dump(item) for item in node.items):
        yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _catches(handler: ast.ExceptHandler, handled: frozenset[str]) -> bool:
    """A handler that raises again catches nothing."""
    if any(isinstance(statement, ast.Raise) for statement in handler.body):
        return False
    if handler.type is None:
        return bool(handled & _ANYTHING)
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(getattr(kind, "id", getattr(kind, "attr", "")) in handled for kind in named)
