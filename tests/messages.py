"""Every message that the code asks a catalogue for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from vramcast.report.html_document import script_messages
from vramcast.report.names import NAMES

PACKAGE = Path(__file__).parents[1] / "src" / "vramcast"
ASKING = ("say", "_said")


def messages() -> set[str]:
    found = {*script_messages(), *NAMES}
    for path in PACKAGE.rglob("*.py"):
        code = path.read_text(encoding="utf-8")
        if "from vramcast.base.language import" in code:
            found |= set(_of_module(ast.parse(code)))
    return found


def _of_module(tree: ast.Module) -> Iterator[str]:
    """Texts in a call, both of a choice, and those of a variable that has a text in the same module."""
    assigned: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ASKING:
            yield from _texts(node.args[0], assigned)


def _texts(node: ast.expr, assigned: dict[str, list[str]]) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, assigned)
        yield from _texts(node.orelse, assigned)
    elif isinstance(node, ast.Name) and node.id != "message":
        yield from assigned.get(node.id, ())  # one that is imported is found where it is defined
