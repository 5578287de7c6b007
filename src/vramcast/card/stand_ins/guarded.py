"""Whether a failed import would be caught."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import FrameType

_CAUGHT_BY = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_OF_PYTHON = ("<frozen importlib", "importlib/")


def is_guarded(frame: FrameType | None) -> bool:
    """Whether code on the stack, from this frame outwards, handles a missing package. That of Python's own import
    and of vramcast does not count: it passes errors on."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("importlib", "_frozen_importlib", "vramcast.", "runpy")):
            guarded = _guarded_lines(frame.f_code.co_filename)
            if guarded is not None and frame.f_lineno in guarded:
                return True
        frame = frame.f_back
    return False


@functools.cache
def _guarded_lines(path: str) -> frozenset[int] | None:
    if path.startswith(_OF_PYTHON):
        return None
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return frozenset(line for node in ast.walk(tree) for line in _lines_of(node))


def _lines_of(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.Try) and any(_catches(handler) for handler in node.handlers):
        for statement in node.body:
            yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    elif isinstance(node, (ast.With, ast.AsyncWith)) and any("suppress" in ast.dump(i) for i in node.items):
        yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _catches(handler: ast.ExceptHandler) -> bool:
    """A handler that raises again catches nothing."""
    if any(isinstance(statement, ast.Raise) for statement in handler.body):
        return False
    if handler.type is None:
        return True
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(getattr(kind, "id", getattr(kind, "attr", "")) in _CAUGHT_BY for kind in named)
