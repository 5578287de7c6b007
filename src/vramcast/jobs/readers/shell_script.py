"""What the commands of a shell script would be, worked out from its text. Nothing is run.

Variables, arrays, arithmetic, functions and conditions are followed. The script is taken to be started without
arguments, in an environment that sets none of its variables: what follows from that is in `assumed`. Where a condition
cannot be decided both ways are followed, and a variable that differs after them is unknown; so is what a program
prints. A command that has something unknown in it says why, with the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from vramcast.base.errors import UsageError
from vramcast.jobs.readers import shell_arithmetic
from vramcast.jobs.readers.shell_syntax import (
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
    closing,
    parse,
)
from vramcast.launchers import without_plain_prefixes

_LONGEST_VALUE = 65_536
_MOST_EXPANDED = 4_000_000
"""Characters that all words of a script expand to together."""
_MOST_COMMANDS = 10_000
_MOST_WORDS = 10_000
_DEEPEST_CALLS = 20
_LONGEST_MATCHED = 2_000
_LONGEST_SHOWN = 60

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?=)(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_OPERATION = re.compile(r"(:?[-=+?]|%%?|##?|//?)(.*)", re.DOTALL)
_EXPR = re.compile(r"""(?:\$\(|`)\s*expr((?:\s+(?:\d+|\$\w+|\$\{\w+\}|[-+/%]|\\?[*()]|'\*'|"\*"))+)\s*[)`]""")
"""`expr 16 / $n`, the arithmetic that old shells have in a program."""
_SLICE = re.compile(r":\s*([0-9]{1,4})(?::\s*([0-9]{1,4}))?")
_UNKNOWN = re.compile("\ue000(\\d{1,6})\ue001")
_DECLARING = ("declare", "typeset", "local", "readonly", "export")
_KNOWN_SETUP = re.compile(r"(?:^|/)(?:activate|conda\.sh|\.?bashrc|\.?bash_profile|\.?profile|modules\.sh)$")
_NOT_SET = "it is not set in the script"
_WITHOUT_ARGUMENTS = "the script is started without arguments"
_ALWAYS_SET = re.compile(
    r"HOME|PATH|USER|LOGNAME|PWD|OLDPWD|HOSTNAME|SHELL|TERM|LANG|RANDOM|SECONDS|LINENO|EPOCHSECONDS|UID|EUID|PPID|"
    r"BASH\w*|SLURM_\w*|PBS_\w*|LSB_\w*|MASTER_ADDR|MASTER_PORT|RANK|LOCAL_RANK|WORLD_SIZE|NODE_RANK"
)
"""Variables that somebody else sets: their value is not in the script."""
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
}  # fmt: skip

Value = str | list[str]
Status = bool | None
"""Whether a command succeeds; None where that is not known."""


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


class _Exit(Exception):
    pass


class _Return(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Followed:
    commands: list[ShellCommand]
    """In the order in which they would run."""
    exit_line: int | None = None
    """The line in which the script would end early."""


def follow(text: str, where: str) -> Followed:
    """The commands of a shell script as words."""
    shell = _Shell(where)
    try:
        shell.run(parse(text, where))
    except _Exit:
        return Followed(shell.commands, shell.line)
    except _Return:
        pass
    except RecursionError:
        raise UsageError(f"{where}: nested too deeply") from None
    return Followed(shell.commands)


@dataclass(slots=True)
class _State:
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    unset: set[str] = field(default_factory=set)
    """Variables set by the script itself, so that the environment does not matter."""
    read_from: str = ""
    """Another file that was read in, which may have set any variable."""

    def copy(self) -> _State:
        return _State(dict(self.variables), set(self.exported), set(self.unset), self.read_from)


class _Shell:
    def __init__(self, where: str) -> None:
        self.commands: list[ShellCommand] = []
        self._where = where
        self._state = _State()
        self._functions: dict[str, Node] = {}
        self._arguments: list[list[str]] = []
        """Arguments of the functions that are being run."""
        self._unknowns: list[tuple[str, str]] = []
        self._assumed: dict[str, None] = {}
        self.line = 1
        self._expanded = 0
        self._run = 0

    # Commands

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
        except _Exit:
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
        after: list[_State] = []
        for body in bodies:
            self._state = before.copy()
            try:
                self.run(body)
                after.append(self._state)
            except (_Exit, _Return):
                continue
        if not after:
            self._state = before
            raise _Exit
        self._state = self._joined(after, line)

    def _joined(self, states: list[_State], line: int) -> _State:
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
        if node.kind == "for" and items is not None and not any(_UNKNOWN.search(item) for item in items):
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
        except (_Exit, _Return):
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
            if any(_matches(value, pattern) for pattern in expanded if pattern is not None):
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
            name = _NAME.match(token.text)
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
                raise _Exit
            case "return":
                raise _Return
            case "shift" | "set" | "break" | "continue":
                self._argument_command(name, rest)
                return True
            case "read" | "getopts" | "mapfile" | "readarray":
                for word in rest:
                    if _NAME.fullmatch(word):
                        self._set(word, self._unknown(f"${word}", f"it is read in line {self.line}"))
                return None
            case "eval":
                return self._text(" ".join(rest))
            case "source" | ".":
                if rest and not _KNOWN_SETUP.search(rest[0]):
                    self._state.read_from = self._spelt(rest[0])[:_LONGEST_SHOWN]
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
        except _Return:
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
        environment = {name: value for name, value in {**exported, **variables}.items() if not _UNKNOWN.search(value)}
        unknowns = [self._unknowns[int(match[1])] for word in words for match in _UNKNOWN.finditer(word)
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

    # Variables

    def _is_assignment(self, kind: str, text: str) -> bool:
        return kind == "array" or _ASSIGNMENT.fullmatch(text) is not None

    def _assign(self, kind: str, text: str, items: tuple[str, ...]) -> None:
        if kind == "array":
            name = text.rstrip("+=")
            values = [word for item in items for word in self._words(item)]
            if text.endswith("+="):
                values = [*_as_list(self._state.variables.get(name, [])), *values]
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
        values = list(_as_list(self._state.variables.get(name, [])))
        if place is None or not 0 <= place <= len(values):
            self._set(name, self._unknown(f"${{{name}[...]}}", f"line {self.line} sets one place of it"))
            return
        values[place : place + 1] = [value]
        self._set(name, values)

    def _declare(self, kind: str, token_kind: str, text: str, items: tuple[str, ...]) -> None:
        if token_kind == "word" and text.startswith("-"):
            return
        name_match = _NAME.match(text)
        if name_match is None:
            return
        if self._is_assignment(token_kind, text):
            self._assign(token_kind, text, items)
        if kind == "export":
            self._state.exported.add(name_match[0])

    def _set(self, name: str, value: Value) -> None:
        size = len(value) if isinstance(value, str) else sum(len(item) + 1 for item in value)
        if size > _LONGEST_VALUE:
            raise UsageError(f"{self._where}:{self.line}: {name} grows beyond {_LONGEST_VALUE:,} characters")
        self._state.variables[name] = value
        self._state.unset.discard(name)

    def _unknown(self, spelt: str, why: str) -> str:
        self._unknowns.append((spelt[:_LONGEST_SHOWN], why))
        if len(self._unknowns) > _MOST_WORDS:
            raise UsageError(f"{self._where}:{self.line}: too much of the script cannot be known")
        return f"\ue000{len(self._unknowns) - 1}\ue001"

    def _spelt(self, word: str) -> str:
        def spelling(match: re.Match[str]) -> str:
            number = int(match[1])
            return self._unknowns[number][0] if number < len(self._unknowns) else ""

        return _UNKNOWN.sub(spelling, word)

    def _unset_as_empty(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            number = int(match[1])
            is_unset = number < len(self._unknowns) and self._unknowns[number][1] == _NOT_SET
            return "" if is_unset else match[0]

        return _UNKNOWN.sub(value, text)

    def _lookup(self, name: str) -> Value | None:
        """None: it is not set."""
        if name in self._state.variables:
            return self._state.variables[name]
        if name.isdigit():
            arguments = self._arguments[-1] if self._arguments else []
            if name == "0":
                return self._unknown("$0", "it is the name of the script")
            place = int(name[:6]) - 1
            if place < len(arguments):
                return arguments[place]
            if not self._arguments:
                self._assumed[_WITHOUT_ARGUMENTS] = None
            return None
        if name in self._state.unset:
            return None
        if _ALWAYS_SET.fullmatch(name):
            return self._unknown(f"${name}", "it is set by whoever starts the script")
        if self._state.read_from:
            return self._unknown(f"${name}", f"{self._state.read_from}, which the script reads in, may set it")
        self._assumed[f"{name} is not set in the environment"] = None
        return None

    # Words

    def _words(self, raw: str, *, split: bool = True) -> list[str]:
        """What a word expands to; `split` at blanks where it is not quoted."""
        fields = _Fields(split)
        self._expand(raw, fields)
        words = fields.finish()
        self._expanded += sum(len(word) + 1 for word in words)
        if self._expanded > _MOST_EXPANDED or len(words) > _MOST_WORDS:
            raise UsageError(f"{self._where}:{self.line}: the script's variables expand to more than can be read")
        return words

    def _expand(self, raw: str, fields: _Fields) -> None:
        at, in_quotes = 0, False
        while at < len(raw):
            sign = raw[at]
            if sign == "\\" and at + 1 < len(raw):
                after = raw[at + 1]
                if after != "\n":
                    keep = in_quotes and after not in '$`"\\'
                    fields.add(f"\\{after}" if keep else after, quoted=True)
                at += 2
            elif sign == "'" and not in_quotes:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                fields.add(raw[at + 1 : end], quoted=True)
                at = end + 1
            elif sign == '"':
                in_quotes = not in_quotes
                fields.add("", quoted=True)
                at += 1
            elif sign == "`":
                end = raw.find("`", at + 1)
                end = len(raw) if end < 0 else end + 1
                fields.add(self._output(raw[at:end]), quoted=True)
                at = end
            elif sign == "$" and at + 1 < len(raw):
                at = self._dollar(raw, at, fields, in_quotes=in_quotes)
            elif sign in "<>" and raw[at + 1 : at + 2] == "(":
                fields.add(self._output(raw[at:]), quoted=True)
                return
            else:
                end = at + 1
                while end < len(raw) and raw[end] not in "\\'\"`$<>":
                    end += 1
                fields.add(raw[at:end], quoted=True)
                at = end

    def _output(self, spelt: str) -> str:
        sum_of = _EXPR.fullmatch(spelt)
        if sum_of is not None:
            value = self._arithmetic(sum_of[1].replace("\\", "").replace("'", "").replace('"', ""))
            if value is not None:
                return str(value)
        return self._unknown(spelt, f"it is what a program prints (line {self.line})")

    def _dollar(self, raw: str, at: int, fields: _Fields, *, in_quotes: bool) -> int:
        after = raw[at + 1]
        if raw.startswith("$((", at):
            end = closing(raw, at + 2, "(", ")")
            end = len(raw) if end < 0 else end
            value = self._arithmetic(raw[at + 3 : end - 2])
            unknown = self._unknown(raw[at:end], f"the arithmetic in line {self.line} needs what is not known")
            fields.add(unknown if value is None else str(value), quoted=in_quotes)
            return end
        if after == "(":
            end = closing(raw, at + 2, "(", ")")
            end = len(raw) if end < 0 else end
            fields.add(self._output(raw[at:end]), quoted=True)
            return end
        if after == "{":
            end = closing(raw, at + 2, "{", "}")
            end = len(raw) if end < 0 else end
            self._parameter(raw[at + 2 : end - 1], raw[at:end], fields, in_quotes=in_quotes)
            return end
        if after == "'":  # $'...'
            end = raw.find("'", at + 2)
            end = len(raw) if end < 0 else end
            fields.add(raw[at + 2 : end].replace("\\n", "\n").replace("\\t", "\t"), quoted=True)
            return end + 1
        name = _NAME.match(raw, at + 1)
        if name is not None:
            self._parameter(name[0], f"${name[0]}", fields, in_quotes=in_quotes)
            return name.end()
        if after.isdigit() or after in "@*#?$!-":
            self._parameter(after, f"${after}", fields, in_quotes=in_quotes)
            return at + 2
        fields.add("$", quoted=True)
        return at + 1

    def _parameter(self, inside: str, spelt: str, fields: _Fields, *, in_quotes: bool) -> None:
        match = _PARAMETER.fullmatch(inside)
        if match is None or (match[1] and match[4]):
            fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
            return
        is_length, name, index, rest = bool(match[1]), match[2], match[3], match[4]
        if name in "@*#" or (is_length and name in "@*"):
            self._positional("#" if is_length else name, rest, fields, in_quotes=in_quotes)
            return
        if name in "?$!-":
            fields.add(self._unknown(spelt, "only a running shell knows it"), quoted=True)
            return
        value = self._lookup(name)
        if index is not None:
            value = self._item(value, index, spelt)
        elif isinstance(value, list):
            value = value[0] if value else None
        if is_length:
            fields.add(self._length(value, spelt), quoted=in_quotes)
            return
        if rest:
            self._operation(name, value, rest, spelt, fields, in_quotes=in_quotes)
        elif isinstance(value, list):
            fields.add_all(value, quoted=in_quotes)
        elif value is None:
            fields.add(self._unknown(spelt, _NOT_SET), quoted=True)
        else:
            fields.add(value, quoted=in_quotes)

    def _positional(self, name: str, rest: str, fields: _Fields, *, in_quotes: bool) -> None:
        arguments = self._arguments[-1] if self._arguments else []
        if not self._arguments:
            self._assumed[_WITHOUT_ARGUMENTS] = None
        spelt, part = f"${{{name}{rest}}}", _SLICE.fullmatch(rest)
        if part is not None and name != "#":
            first = int(part[1])
            arguments = arguments[max(0, first - 1) :][: None if part[2] is None else int(part[2])]
            fields.add_all(arguments, quoted=in_quotes)
        elif rest and not rest.startswith((":-", "-")):
            fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
        elif name == "#":
            fields.add(str(len(arguments)), quoted=in_quotes)
        elif arguments or not rest:
            fields.add_all(arguments, quoted=in_quotes)
        else:
            self._expand(rest.lstrip(":").removeprefix("-"), fields)

    def _item(self, value: Value | None, index: str, spelt: str) -> Value | None:
        if value is None:
            return [] if index in ("@", "*") else None
        values = _as_list(value)
        if index in ("@", "*"):
            return values
        place = self._arithmetic(index)
        if place is None:
            return self._unknown(spelt, f"its place in line {self.line} is not known")
        return values[place] if -len(values) <= place < len(values) else None

    def _length(self, value: Value | None, spelt: str) -> str:
        if isinstance(value, list):
            return str(len(value))
        if value is not None and _UNKNOWN.search(value):
            return self._unknown(spelt, "its length is not known")
        return str(len(value or ""))

    def _operation(
        self, name: str, value: Value | None, rest: str, spelt: str, fields: _Fields, *, in_quotes: bool
    ) -> None:
        match = _OPERATION.fullmatch(rest)
        if match is None:
            fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
            return
        operator, word = match[1], match[2]
        text = " ".join(value) if isinstance(value, list) else value
        if text is not None and operator.startswith(":"):
            text = self._unset_as_empty(text)
        is_unknown = text is not None and _UNKNOWN.search(text) is not None
        if operator.strip(":") in ("-", "=", "+", "?"):
            missing = text is None or (operator.startswith(":") and not text)
            if operator.endswith("+"):
                if is_unknown:
                    fields.add(self._unknown(spelt, "whether it is set is not known"), quoted=True)
                elif not missing:
                    self._expand_in(word, fields, in_quotes=in_quotes)
            elif is_unknown or not missing:
                if isinstance(value, list):
                    fields.add_all(value, quoted=in_quotes)
                else:
                    fields.add(text or "", quoted=in_quotes)
            elif operator.endswith("?"):
                fields.add(self._unknown(spelt, _NOT_SET), quoted=True)
            else:
                self._expand_in(word, fields, in_quotes=in_quotes)
                if operator.endswith("="):
                    self._set(name, " ".join(self._words(word, split=False)))
            return
        pattern = " ".join(self._words(word, split=False))
        changed = None if text is None or is_unknown or _UNKNOWN.search(pattern) else _trimmed(text, operator, pattern)
        if changed is None:
            fields.add(self._unknown(spelt, f"its form in line {self.line} is not followed"), quoted=True)
        else:
            fields.add(changed, quoted=in_quotes)

    def _expand_in(self, word: str, fields: _Fields, *, in_quotes: bool) -> None:
        if in_quotes:
            fields.add(" ".join(self._words(word, split=False)), quoted=True)
        else:
            for piece in self._words(word, split=False):
                fields.add(piece, quoted=False)

    # Arithmetic and conditions

    def _arithmetic(self, text: str) -> int | None:
        """None: it needs what is not known."""
        why = f"the arithmetic in line {self.line} needs what is not known"
        text = " ".join(self._words(text.replace('"', ""), split=False)) if "$" in text else text
        if _UNKNOWN.search(text):
            for name in shell_arithmetic.assigned_in(text):
                self._set(name, self._unknown(f"${name}", why))
            return None

        def lookup(name: str) -> int | None:
            value = self._lookup(name)
            value = (value[0] if value else "") if isinstance(value, list) else value
            return 0 if not value else _whole(value)

        value, changes = shell_arithmetic.evaluate(text, lookup)
        for name, number in changes.items():
            self._set(name, self._unknown(f"${name}", why) if number is None else str(number))
        return value

    def _test(self, words: list[str], *, is_double: bool) -> Status:
        return _Test(words, self, is_double=is_double).value()

    def known_text(self, word: str) -> str | None:
        """The value of a word in a condition; None where it is not known. A variable that is not set is empty."""
        value = self._unset_as_empty(" ".join(self._words(word, split=False)))
        return None if _UNKNOWN.search(value) else value

    def is_set(self, name: str) -> bool:
        return self._lookup(name) is not None

    def whole(self, word: str) -> int | None:
        value = self.known_text(word)
        return None if value is None else _whole(value) if value else 0


class _Fields:
    """The words that one word of the text becomes."""

    def __init__(self, split: bool) -> None:
        self._split = split
        self._words: list[str] = []
        self._current: str | None = None
        self._is_gone = False
        """There was a quoted list without items, which is no word, while an empty text would be one."""

    def add(self, text: str, *, quoted: bool) -> None:
        if quoted or not self._split:
            self._current = (self._current or "") + text
            return
        pieces = text.split()
        if text[:1].isspace() or not text:
            self._end() if text else None
        for i, piece in enumerate(pieces):
            if i:
                self._end()
            self._current = (self._current or "") + piece
        if pieces and text[-1:].isspace():
            self._end()

    def add_all(self, values: Sequence[str], *, quoted: bool) -> None:
        """Each a word of its own, as "$@" and "${array[@]}"."""
        for i, value in enumerate(values):
            if i and self._split:
                self._end()
            elif i:
                self.add(" ", quoted=True)
            self.add(value, quoted=quoted)
        self._is_gone = not values

    def finish(self) -> list[str]:
        self._end()
        return self._words

    def _end(self) -> None:
        if self._current is not None and not (self._is_gone and not self._current):
            self._words.append(self._current)
        self._current, self._is_gone = None, False


class _Test:
    """The words of [ ... ] and [[ ... ]]."""

    def __init__(self, words: list[str], shell: _Shell, *, is_double: bool) -> None:
        self._words, self._shell, self._is_double = words, shell, is_double
        self._at = 0
        self._depth = 0

    def value(self) -> Status:
        if not self._words:
            return False
        status = self._or()
        return status if self._at == len(self._words) else None

    def _peek(self) -> str | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def _next(self) -> str:
        self._at += 1
        return self._words[self._at - 1] if self._at <= len(self._words) else ""

    def _or(self) -> Status:
        status = self._and()
        while self._plain(self._peek()) in ("||", "-o"):
            self._next()
            other = self._and()
            status = True if status or other else None if status is None or other is None else False
        return status

    def _and(self) -> Status:
        status = self._not()
        while self._plain(self._peek()) in ("&&", "-a"):
            self._next()
            other = self._not()
            status = False if status is False or other is False else None if status is None or other is None else True
        return status

    def _not(self) -> Status:
        negated = False
        while self._plain(self._peek()) == "!":
            self._next()
            negated = not negated
        status = self._primary()
        return status if not negated or status is None else not status

    def _plain(self, word: str | None) -> str:
        """The word as an operator, which may be quoted."""
        return "" if word is None else word.strip("'\"")

    def _primary(self) -> Status:
        word = self._next()
        self._depth += 1
        if self._depth > _DEEPEST_CALLS * 10:
            return None
        if self._plain(word) == "(":
            status = self._or()
            if self._plain(self._peek()) == ")":
                self._next()
            return status
        operator = self._plain(self._peek())
        if operator in ("=", "==", "!="):
            self._next()
            return self._compared(word, self._next(), negated=operator == "!=")
        if operator in _COMPARED:
            self._next()
            left, right = self._shell.whole(word), self._shell.whole(self._next())
            return None if left is None or right is None else _COMPARED[operator](left, right)
        if operator in ("=~", "<", ">", "-nt", "-ot", "-ef"):
            self._next()
            self._next()
            return None
        plain = self._plain(word)
        if re.fullmatch("-[a-zA-Z]", plain) and self._peek() is not None:
            operand = self._next()
            if plain == "-v":
                return self._shell.is_set(self._plain(operand))
            if plain not in ("-z", "-n"):
                return None  # a question about files
            value = self._shell.known_text(operand)
            return None if value is None else (not value) == (plain == "-z")
        value = self._shell.known_text(word)
        return None if value is None else bool(value)

    def _compared(self, left: str, right: str, *, negated: bool) -> Status:
        text, expected = self._shell.known_text(left), self._shell.known_text(right)
        if text is None or expected is None:
            return None
        is_pattern = self._is_double and not right.startswith(("'", '"'))
        same = _matches(text, expected) if is_pattern else text == expected
        return same != negated


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
                    names |= {name for token in node.words[1:] for name in _NAME.findall(token.text)}
            case Arithmetic():
                names |= shell_arithmetic.assigned_in(node.text)
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


def _as_list(value: Value) -> list[str]:
    return value if isinstance(value, list) else [value]


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,18}", text) else None


def _matches(value: str, pattern: str) -> bool:
    return value == pattern or (
        len(value) <= _LONGEST_MATCHED and len(pattern) <= _LONGEST_MATCHED and fnmatchcase(value, pattern)
    )


def _trimmed(text: str, operator: str, pattern: str) -> str | None:
    """${name%suffix}, ${name#prefix}, ${name/old/new}; None for what is not followed."""
    if len(text) > _LONGEST_MATCHED or len(pattern) > _LONGEST_MATCHED:
        return None
    if operator in ("/", "//"):
        old, _, new = pattern.partition("/")
        if not old or any(sign in old for sign in "*?[\\#%"):
            return None
        return text.replace(old, new, -1 if operator == "//" else 1)
    at_end = operator.startswith("%")
    lengths = range(len(text) + 1)
    for length in lengths if len(operator) == 1 else reversed(lengths):
        piece = text[len(text) - length :] if at_end else text[:length]
        if fnmatchcase(piece, pattern):
            return text[: len(text) - length] if at_end else text[length:]
    return text
