"""What the commands of a shell script would be, worked out from its text. Nothing is run.

Variables, arrays, arithmetic, functions and conditions are followed. The script is taken to be started without
arguments, in an environment that sets none of its variables: what follows from that is in `assumed`. Where a condition
cannot be decided both ways are followed, and a variable that differs after them is unknown; so is what a program
prints. A command that has something unknown in it says why, with the line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from vramcast.base.errors import UsageError
from vramcast.launchers.prefixes import without_plain_prefixes
from vramcast.launchers.shell import arithmetic
from vramcast.launchers.shell.conditions import Condition, Status
from vramcast.launchers.shell.syntax import (
    AndOr,
    Arithmetic,
    Body,
    Case,
    Function,
    Group,
    If,
    Loop,
    Node,
    Pipeline,
    Simple,
    Test,
    parse,
)
from vramcast.launchers.shell.variables import LONGEST_SHOWN, UNKNOWN, State, Value
from vramcast.launchers.shell.words import NAME, Words, as_list, matches

_MOST_COMMANDS = 10_000
_DEEPEST_CALLS = 20

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?=)(.*)", re.DOTALL)
_DECLARING = ("declare", "typeset", "local", "readonly", "export")
_KNOWN_SETUP = re.compile(r"(?:^|/)(?:activate|conda\.sh|\.?bashrc|\.?bash_profile|\.?profile|modules\.sh)$")


@dataclass(frozen=True, slots=True)
class ShellCommand:
    words: list[str]
    environment: dict[str, str]
    """What was exported before it, or stands in front of it."""
    first_line: int
    last_line: int
    """Line of the script, from 0."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What in its words is not known, as it is spelt there → why."""
    assumed: tuple[str, ...] = ()
    """What was assumed on the way to it."""
    folder: str = ""
    """Where it would run, if that is known."""


class Exit(Exception):
    pass


class Return(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Followed:
    commands: list[ShellCommand]
    """In the order in which they would run."""
    exit_line: int | None = None
    """The line in which the script would end early."""


def follow(text: str, where: str) -> Followed:
    """The commands of a shell script as words."""
    return Shell(where).follow(text)


class Shell(Words):
    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.commands: list[ShellCommand] = []
        self._functions: dict[str, Node] = {}
        self._run = 0

    def follow(self, text: str) -> Followed:
        try:
            self.run(parse(text, self._where))
        except Exit:
            return Followed(self.commands, self.line)
        except Return:
            pass
        except RecursionError:
            raise UsageError(f"{self._where}: nested too deeply") from None
        return Followed(self.commands)

    def run(self, body: Body) -> Status:
        status: Status = True
        for node in body:
            status = self._node(node)
        return status

    def _node(self, node: Node) -> Status:
        self._run += 1
        if self._run > _MOST_COMMANDS:
            raise UsageError(f"{self._where}:{self.line}: more than {_MOST_COMMANDS:,} commands are not followed")
        match node:
            case Simple():
                self.line = node.line
                return self._simple(node)
            case AndOr():
                return self._and_or(node)
            case Pipeline():
                statuses = [self._node(part) for part in node.parts]
                last = statuses[-1] if len(statuses) == 1 else None
                return (None if last is None else not last) if node.negated else last
            case Group():
                return self._group(node)
            case If():
                return self._if(node)
            case Loop():
                self._loop(node)
            case Case():
                self._case(node)
            case Function():
                self._functions[node.name] = node.body
            case Arithmetic():
                self.line = node.line
                value = self._arithmetic(node.text)
                return None if value is None else value != 0
            case Test():
                self.line = node.line
                return self._test(list(node.words), is_double=True)
        return True

    def _group(self, node: Group) -> Status:
        if not node.is_subshell:
            return self.run(node.body)
        before = self._state.copy()
        try:
            return self.run(node.body)
        except Exit:
            return None
        finally:
            self._state = before

    def _and_or(self, node: AndOr) -> Status:
        """A program is taken to succeed; where a condition has no answer, both ways stay open."""
        status = self._node(node.first)
        first: Node | None = node.first
        for operator, after in node.rest:
            goes_on = True if status is None and not _is_question(first) else status
            if goes_on is None:
                self._either([(after,), ()])
                status = None
            elif goes_on == (operator == "&&"):
                status = self._node(after)
            first = after
        return status

    def _if(self, node: If) -> Status:
        open_bodies: list[Body] = []
        for condition, body in node.branches:
            status = self._condition(condition)
            self.line = node.line
            if status:
                if not open_bodies:
                    return self.run(body)
                self._either([*open_bodies, body])
                return None
            if status is None:
                open_bodies.append(body)
        if open_bodies:
            self._either([*open_bodies, node.otherwise])
            return None
        return self.run(node.otherwise)

    def _condition(self, body: Body) -> Status:
        status = self.run(body)
        return status if body and _is_decided_here(body[-1]) else None

    def _either(self, bodies: Sequence[Body]) -> None:
        """One of these runs, and it is not known which."""
        line, before = self.line, self._state
        after: list[State] = []
        for body in bodies:
            self._state = before.copy()
            try:
                self.run(body)
                after.append(self._state)
            except (Exit, Return):
                continue
        if not after:
            self._state = before
            raise Exit
        self._state = self._joined(after, line)

    def _joined(self, states: list[State], line: int) -> State:
        joined = states[0].copy()
        names = {name for state in states for name in state.variables}
        for name in sorted(names):
            values = [state.variables.get(name) for state in states]
            if any(value != values[0] for value in values):
                joined.variables[name] = self._unknown(f"${name}", f"it depends on the condition in line {line}")
        for state in states[1:]:
            joined.exported |= state.exported
            joined.read_from = joined.read_from or state.read_from
        return joined

    def _loop(self, node: Loop) -> None:
        self.line = node.line
        items = None if node.items is None else [word for item in node.items for word in self._words(item)]
        if node.kind == "for" and items is not None and not any(UNKNOWN.search(item) for item in items):
            if len(items) <= 1:
                for item in items:
                    self._set(node.variable, item)
                    self.run(node.body)
                return
        elif node.kind != "for":
            status = self._condition(node.condition)
            if status is (node.kind == "until"):
                return
        before = self._state.copy()
        names = _assigned_in(node.body)
        for name in names | ({node.variable} if node.variable else set()):
            self._state.variables[name] = self._unknown(f"${name}", f"the loop in line {node.line} changes it")
        try:
            self.run(node.body)
        except (Exit, Return):
            self._state = before
            return
        self._state = self._joined([self._state, before], node.line)

    def _case(self, node: Case) -> None:
        self.line = node.line
        value = self.known_text(node.word)
        for patterns, body in node.branches:
            expanded = [self.known_text(pattern) for pattern in patterns]
            if value is None or None in expanded:
                self._either([*(body for _, body in node.branches), ()])
                return
            if any(matches(value, pattern) for pattern in expanded if pattern is not None):
                self.run(body)
                return

    def _simple(self, node: Simple) -> Status:
        tokens = list(node.words)
        assigned: dict[str, Value] = {}
        before = self._state
        while tokens and self._is_assignment(tokens[0].kind, tokens[0].text):
            if len(tokens) > 1 and before is self._state:
                self._state = before.copy()  # those in front of a command are for that command alone
            token = tokens.pop(0)
            self._assign(token.kind, token.text, token.items)
            name = NAME.match(token.text)
            if name is not None:
                assigned[name[0]] = self._state.variables.get(name[0], "")
        if not tokens:
            if before is not self._state:
                self._state = self._state.copy()
            return True
        self._state = before
        first = self._words(tokens[0].text)
        if first and first[0] in _DECLARING:
            for token in tokens[1:]:
                self._declare(first[0], token.kind, token.text, token.items)
            return True
        if tokens[0].text in ("[", "test"):
            operands = [token.text for token in tokens[1:]]
            return self._test(operands[:-1] if tokens[0].text == "[" else operands, is_double=False)
        words = [word for token in tokens for word in self._words(token.text)]
        environment = {name: value for name, value in assigned.items() if isinstance(value, str)}
        return self._command(words, environment, node)

    def _command(self, words: list[str], variables: dict[str, str], node: Simple) -> Status:
        words = without_plain_prefixes(words)
        if not words:
            return True
        name, rest = words[0], words[1:]
        if name in self._functions:
            return self._call(name, rest)
        match name:
            case "true" | ":":
                return True
            case "false":
                return False
            case "let":
                values = [self._arithmetic(word) for word in rest]
                return None if not values or values[-1] is None else values[-1] != 0
            case "unset":
                for word in rest:
                    self._state.variables.pop(word, None)
                    self._state.unset.add(word)
                return True
            case "exit":
                raise Exit
            case "return":
                raise Return
            case "shift" | "set" | "break" | "continue":
                self._argument_command(name, rest)
                return True
            case "read" | "getopts" | "mapfile" | "readarray":
                for word in rest:
                    if NAME.fullmatch(word):
                        self._set(word, self._unknown(f"${word}", f"it is read in line {self.line}"))
                return None
            case "eval":
                return self._text(" ".join(rest))
            case "source" | ".":
                if rest and not _KNOWN_SETUP.search(rest[0]):
                    self._state.read_from = self._spelt(rest[0])[:LONGEST_SHOWN]
                return True
        shell = next((i for i, word in enumerate(words) if word in ("bash", "sh", "/bin/bash", "/bin/sh")), None)
        if shell is not None and len(words) > shell + 2 and re.fullmatch("-[a-z]*c", words[shell + 1]):
            return self._text(words[shell + 2])
        self._record(words, variables, node)
        return None

    def _call(self, name: str, arguments: list[str]) -> Status:
        if len(self._arguments) >= _DEEPEST_CALLS:
            raise UsageError(f"{self._where}:{self.line}: {name} calls itself too often to be followed")
        self._arguments.append(arguments)
        try:
            return self._node(self._functions[name])
        except Return:
            return None
        finally:
            self._arguments.pop()

    def _text(self, text: str) -> Status:
        """A command that is put together as text: eval, bash -c."""
        if len(self._arguments) >= _DEEPEST_CALLS:
            raise UsageError(f"{self._where}:{self.line}: text that is run as a command, too deep to be followed")
        self._arguments.append([])
        line = self.line
        try:
            return self.run(parse(self._spelt(text), self._where, line))
        finally:
            self._arguments.pop()

    def _argument_command(self, name: str, rest: list[str]) -> None:
        if name == "shift" and self._arguments:
            count = int(rest[0]) if rest and rest[0].isdecimal() and len(rest[0]) < 4 else 1
            self._arguments[-1] = self._arguments[-1][count:]
        elif name == "set" and "--" in rest:
            given = rest[rest.index("--") + 1 :]
            if self._arguments:
                self._arguments[-1] = given
            else:
                self._arguments.append(given)

    def _record(self, words: list[str], variables: dict[str, str], node: Simple) -> None:
        exported = {
            name: value
            for name in sorted(self._state.exported)
            if isinstance(value := self._state.variables.get(name), str)
        }
        environment = {name: value for name, value in {**exported, **variables}.items() if not UNKNOWN.search(value)}
        unknowns = [self._unknowns[int(match[1])] for word in words for match in UNKNOWN.finditer(word)
                 if int(match[1]) < len(self._unknowns)]  # fmt: skip
        self.commands.append(
            ShellCommand(
                words=[self._spelt(word) for word in words],
                environment=environment,
                first_line=node.line - 1,
                last_line=node.last_line - 1,
                unknown=dict(unknowns),
                assumed=tuple(self._assumed),
            )
        )

    def _is_assignment(self, kind: str, text: str) -> bool:
        return kind == "array" or _ASSIGNMENT.fullmatch(text) is not None

    def _assign(self, kind: str, text: str, items: tuple[str, ...]) -> None:
        if kind == "array":
            name = text.rstrip("+=")
            values = [word for item in items for word in self._words(item)]
            if text.endswith("+="):
                values = [*as_list(self._state.variables.get(name, [])), *values]
            self._set(name, values)
            return
        match = _ASSIGNMENT.fullmatch(text)
        assert match is not None
        name, index, operator, raw = match[1], match[2], match[3], match[4]
        value = " ".join(self._words(raw, split=False))
        if index is not None:
            self._set_item(name, index, value)
            return
        before = self._state.variables.get(name, "")
        if operator == "+=" and isinstance(before, list):
            self._set(name, [(before[0] if before else "") + value, *before[1:]])
        else:
            self._set(name, (before if operator == "+=" and isinstance(before, str) else "") + value)

    def _set_item(self, name: str, index: str, value: str) -> None:
        place = self._arithmetic(index)
        values = list(as_list(self._state.variables.get(name, [])))
        if place is None or not 0 <= place <= len(values):
            self._set(name, self._unknown(f"${{{name}[...]}}", f"line {self.line} sets one place of it"))
            return
        values[place : place + 1] = [value]
        self._set(name, values)

    def _declare(self, kind: str, token_kind: str, text: str, items: tuple[str, ...]) -> None:
        if token_kind == "word" and text.startswith("-"):
            return
        name_match = NAME.match(text)
        if name_match is None:
            return
        if self._is_assignment(token_kind, text):
            self._assign(token_kind, text, items)
        if kind == "export":
            self._state.exported.add(name_match[0])

    def _test(self, words: list[str], *, is_double: bool) -> Status:
        return Condition(words, self, is_double=is_double).value()


def _is_question(node: Node | None) -> bool:
    """Whether a command is run for its answer: a test, or a program that only looks something up."""
    if isinstance(node, Simple):
        first = node.words[0].text if node.words else ""
        return first in ("[", "test", "grep", "which", "command", "hash", "type", "diff", "cmp", "read", "pgrep")
    return not isinstance(node, Function)


def _is_decided_here(node: Node) -> bool:
    """Whether a condition is more than the success of a program, which is not known."""
    if isinstance(node, Simple):
        first = node.words[0].text if node.words else ""
        return first in ("[", "test", "true", ":", "false", "let")
    if isinstance(node, AndOr):
        return all(_is_decided_here(part) for part in (node.first, *(after for _, after in node.rest)))
    if isinstance(node, Pipeline):
        return len(node.parts) == 1 and _is_decided_here(node.parts[0])
    return isinstance(node, Arithmetic | Test)


def _assigned_in(body: Body) -> set[str]:
    """Names of variables that these commands may set."""
    names: set[str] = set()
    for node in body:
        match node:
            case Simple():
                for token in node.words:
                    match_ = _ASSIGNMENT.match(token.text)
                    if match_ is not None:
                        names.add(match_[1])
                if node.words and node.words[0].text in ("read", "let", "unset"):
                    names |= {name for token in node.words[1:] for name in NAME.findall(token.text)}
            case Arithmetic():
                names |= arithmetic.assigned_in(node.text)
            case AndOr():
                names |= _assigned_in((node.first, *(after for _, after in node.rest)))
            case Pipeline():
                names |= _assigned_in(node.parts)
            case Group():
                names |= set() if node.is_subshell else _assigned_in(node.body)
            case If():
                for condition, branch in node.branches:
                    names |= _assigned_in(condition) | _assigned_in(branch)
                names |= _assigned_in(node.otherwise)
            case Loop():
                names |= _assigned_in(node.condition) | _assigned_in(node.body)
                names |= {node.variable} if node.variable else set()
            case Case():
                for _, branch in node.branches:
                    names |= _assigned_in(branch)
            case Function():
                names |= _assigned_in((node.body,))
    return names
