"""Which parts of a script were not run, because it was stopped before: evaluation, later stages, what follows the loop.

What follows the line at which each function stands has not been run, unless it is in a loop. For loops, the script is
compiled with a mark at the beginning of each function, of each branch, and of what follows a loop: a mark that was not
passed stands for code that may still come.
"""

from __future__ import annotations

import ast
import builtins
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from vramcast.base.script_marks import recorder

MARK = "__vramcast_reached__"
CAUGHT = "__vramcast_caught__"
"""Called where a handler of an error begins."""

_HARMLESS = frozenset((
    MARK, CAUGHT, "add_scalar", "append", "close", "critical", "debug", "error", "exception", "exit", "finish", "flush",
    "format", "info", "item", "join", "log", "makedirs", "perf_counter", "pprint", "save", "savefig", "state_dict",
    "time", "update", "warning", "warn", "write", "writelines", *dir(builtins),
))  # fmt: skip
"""Calls that take nothing on the card, or nothing worth mentioning."""
_TELLING = (
    "eval",
    "valid",
    "test",
    "unfreeze",
    "requires_grad",
    "stage",
    "finetune",
    "generate",
    "sample",
)
"""What a branch that may come is about, where it is worth mentioning."""
_MOST_NAMED = 4

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Loop = ast.For | ast.AsyncFor | ast.While
_BODIES = ("body", "orelse", "finalbody")


@dataclass(frozen=True, slots=True)
class _Part:
    """Statements that are entered together: a branch, or what follows a loop."""

    is_branch: bool
    statements: Sequence[ast.stmt]

    @property
    def first_line(self) -> int:
        return self.statements[0].lineno


class Unreached:
    """What of one script was reached. `compile` makes the code to run, with `reached` as MARK among its globals."""

    def __init__(self, source: bytes, path: str) -> None:
        """Raises as `compile` does."""
        self._path = path
        self._tree = ast.parse(source, path)
        self._marks = 0
        self._reached: set[int] = set()
        self._parts: dict[int, _Part] = {}
        self._functions: dict[str, tuple[int, _Function]] = {}
        self.reached: Callable[[int], None] = recorder(self._reached)
        self._tree.body = self._marked(self._tree.body)

    def compile(self) -> CodeType:
        return compile(self._tree, self._path, "exec", dont_inherit=True)

    # -- marking --------------------------------------------------------------------------------------------

    def _marked(self, body: list[ast.stmt]) -> list[ast.stmt]:
        marked: list[ast.stmt] = []
        for position, statement in enumerate(body):
            self._mark_inside(statement)
            marked.append(statement)
            rest = body[position + 1 :]
            if isinstance(statement, _Loop) and rest:
                self._parts[self._marks] = _Part(False, rest)
                return [*marked, self._mark(rest[0]), *self._marked(rest)]
        return marked

    def _mark_inside(self, statement: ast.stmt) -> None:
        if isinstance(statement, _Function):
            documented = 1 if ast.get_docstring(statement, clean=False) is not None else 0
            self._functions.setdefault(statement.name, (self._marks, statement))
            mark = self._mark(statement.body[-1])
            statement.body = [*statement.body[:documented], mark, *self._marked(statement.body[documented:])]
        elif isinstance(statement, ast.If):
            statement.body = self._branch(statement.body)
            if statement.orelse:
                statement.orelse = self._branch(statement.orelse)
        elif isinstance(statement, ast.Match):
            for case in statement.cases:
                case.body = self._branch(case.body)
        else:
            for name in _BODIES:
                inner = getattr(statement, name, None)
                if inner:
                    setattr(statement, name, self._marked(inner))
            for handler in getattr(statement, "handlers", ()):
                handler.body = [_call(CAUGHT, [], handler.body[0]), *handler.body]

    def _branch(self, body: list[ast.stmt]) -> list[ast.stmt]:
        self._parts[self._marks] = _Part(True, body)
        return [self._mark(body[0]), *self._marked(body)]

    def _mark(self, place: ast.stmt) -> ast.stmt:
        self._marks += 1
        return _call(MARK, [ast.Constant(self._marks - 1)], place)

    # -- what is left ---------------------------------------------------------------------------------------

    def summary(self, frame: FrameType | None) -> str:
        """What a script that is stopped at `frame` would still do, in a few words; empty where that is nothing."""
        ahead: list[tuple[str, _Part]] = []
        while frame is not None:
            if frame.f_code.co_filename == self._path:
                parts, ends = self._ahead(frame.f_code, frame.f_lineno)
                ahead += parts
                if not ends:
                    break
            frame = frame.f_back
        return _listed(self._items(ahead))

    def _items(self, ahead: list[tuple[str, _Part]]) -> list[str]:
        file = os.path.basename(self._path)
        functions: dict[str, None] = {}
        rests: dict[str, None] = {}
        for owner, part in ahead:
            called = _called(part.statements)
            own = [name for name in called if self._is_unseen(name)]
            functions.update(dict.fromkeys(f"{name}() ({file}:{self._functions[name][1].lineno})" for name in own))
            others = [name for name in called if name not in self._functions and name not in _HARMLESS]
            whole = f"{owner}()" if owner else file
            if part.is_branch and not own:
                telling = next(word for word in _words(part.statements) if _is_telling(word))
                rests[f"the branch at line {part.first_line} of {whole} ({telling})"] = None
            elif others:
                shown = ", ".join(dict.fromkeys(others[:2]))
                more = ", ..." if len(others) > 2 else ""
                rests[f"the rest of {whole} from line {part.first_line} ({shown}{more})"] = None
        return [*functions, *rests]

    def _is_unseen(self, name: str) -> bool:
        return name in self._functions and self._functions[name][0] not in self._reached

    def _ahead(self, code: CodeType, line: int) -> tuple[list[tuple[str, _Part]], bool]:
        """(function, part) of what comes after `line` in a function that is being run, and whether the function can
        ever come to its end."""
        owner, body = self._body_of(code)
        loop: ast.stmt | None = None
        after: list[list[ast.stmt]] = []
        ends = True
        while True:
            position = _position(body, line)
            if position is None:
                break
            statement = body[position]
            if loop is None:
                after.append(_without_marks(body[position + 1 :]))
                if isinstance(statement, _Loop):
                    loop = statement
            if _is_endless(statement):
                ends, after = False, []
            body = next((inner for inner in _inner(statement) if _position(inner, line) is not None), [])
        ahead: list[tuple[str, _Part]] = [(owner, _Part(False, rest)) for rest in after if rest]
        if loop is not None:
            ahead += [(owner, part) for part in self._ahead_in(loop)]
        return ahead, ends

    def _ahead_in(self, loop: ast.stmt) -> Iterator[_Part]:
        first, last = loop.lineno, loop.end_lineno or loop.lineno
        covered: list[tuple[int, int]] = []
        for number, part in self._parts.items():
            start, end = part.first_line, part.statements[-1].end_lineno or part.first_line
            if (
                number in self._reached
                or not first <= start <= last
                or any(a <= start and end <= b for a, b in covered)
            ):
                continue
            if not part.is_branch or any(map(_is_telling, _words(part.statements))):
                covered.append((start, end))
                yield part

    def _body_of(self, code: CodeType) -> tuple[str, list[ast.stmt]]:
        for node in ast.walk(self._tree):
            if isinstance(node, _Function) and node.name == code.co_name:
                lines = {node.lineno, *(decorator.lineno for decorator in node.decorator_list)}
                if code.co_firstlineno in lines:
                    return node.name, node.body
        return ("", self._tree.body) if code.co_name == "<module>" else ("", [])


def _call(name: str, arguments: list[ast.expr], place: ast.stmt) -> ast.stmt:
    call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), arguments, []))
    ast.copy_location(call, place)
    return ast.fix_missing_locations(call)


def _is_endless(statement: ast.stmt) -> bool:
    """Whether it is a `while True:` that nothing leaves."""
    if not isinstance(statement, ast.While) or not isinstance(statement.test, ast.Constant) or not statement.test.value:
        return False
    return not any(isinstance(node, (ast.Break, ast.Return)) for node in _nodes(statement.body))


def _position(body: Sequence[ast.stmt], line: int) -> int | None:
    for position, statement in enumerate(body):
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno) and not _is_mark(statement):
            return position
    return None


def _inner(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in _BODIES:
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body


def _without_marks(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    return [statement for statement in body if not _is_mark(statement)]


def _is_mark(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in (MARK, CAUGHT)


def _called(statements: Sequence[ast.stmt]) -> list[str]:
    """The names of what is called in them, methods without their object; not inside functions that they define."""
    return [_name(node.func) for node in _nodes(statements) if isinstance(node, ast.Call) and _name(node.func)]


def _words(statements: Sequence[ast.stmt]) -> Iterator[str]:
    for node in _nodes(statements):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


def _is_telling(word: str) -> bool:
    return any(part in word.lower() for part in _TELLING)


def _nodes(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    waiting: list[Any] = list(reversed(statements))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def _listed(items: list[str]) -> str:
    if len(items) > _MOST_NAMED:
        items = [*items[: _MOST_NAMED - 1], f"{len(items) - _MOST_NAMED + 1} more"]
    return ", ".join(items)
