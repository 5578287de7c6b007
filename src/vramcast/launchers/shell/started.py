"""A shell script as it would go on here and now: with its arguments, the environment and the files that are there.

It is read, too, and not run: no program is started. What some programs would print is known without them.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from vramcast.base.errors import UsageError
from vramcast.base.input_files import read_text
from vramcast.launchers.shell.conditions import Status
from vramcast.launchers.shell.follow import Followed, Return, Shell, ShellCommand
from vramcast.launchers.shell.syntax import Loop, Pipeline, Simple, parse
from vramcast.launchers.shell.variables import UNKNOWN, Value

_MOST_ROUNDS = 1000
LARGEST_BYTES = 2**20
"""Of a shell script."""

_ONE_CARD = re.compile(r"nvidia-smi\b.*\|\s*wc\s+-l|torch\.cuda\.device_count\(\)|\bnvidia-smi\b.*--query-gpu=count\b")
"""What asks how many cards there are."""

_FILE_TESTS: dict[str, Callable[[str], bool]] = {
    "-f": os.path.isfile, "-d": os.path.isdir, "-e": os.path.exists, "-r": os.path.exists, "-L": os.path.islink,
    "-h": os.path.islink, "-s": lambda path: os.path.isfile(path) and os.path.getsize(path) > 0,
    "-x": lambda path: os.access(path, os.X_OK), "-w": lambda path: os.access(path, os.W_OK),
}  # fmt: skip


def follow_started(
    text: str, where: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str
) -> Followed:
    """The commands of a script that is started in `folder`; each says where it would run."""
    return _Started(where, arguments, environment, folder).follow(text)


class _LoopEnds(Return):
    def __init__(self, goes_on: bool) -> None:
        super().__init__()
        self.goes_on = goes_on
        """With its next round."""


class _Started(Shell):
    def __init__(self, where: str, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        super().__init__(where)
        self._arguments.append(list(arguments))
        self._environment = environment
        self._loops = 0
        self._set("PWD", folder)

    @property
    def _folder(self) -> str:
        folder = self._state.variables.get("PWD", "")
        return folder if isinstance(folder, str) else ""

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, os.path.expanduser(name))

    # -- variables --------------------------------------------------------------------------------------------

    def _lookup(self, name: str) -> Value | None:
        if name in ("0", "BASH_SOURCE"):
            return self._where
        if name in self._state.variables or name.isdigit():
            return super()._lookup(name)
        if name in self._state.unset:
            return None
        if name in ("RANDOM", "SECONDS", "UID", "EUID", "PPID", "LINENO"):
            return "1"
        return self._environment.get(name)

    def _not_set(self, spelt: str) -> str:
        return ""

    def _output(self, spelt: str) -> str:
        if _ONE_CARD.search(spelt):
            self._assumed["there is one card, where the script counts them"] = None
            return "1"
        known = self._printed(spelt[2:-1] if spelt.startswith("$(") else spelt[1:-1])
        return super()._output(spelt) if known is None else known

    def _printed(self, text: str) -> str | None:
        body = parse(text, self._where, self.line)
        if any(isinstance(node, Pipeline) and len(node.parts) > 1 for node in body):
            return None
        state, commands, line = self._state, self.commands, self.line
        self._state, self.commands = state.copy(), []
        try:
            self.run(body)
            printed = [_printed_by(command) for command in self.commands]
        except Return:
            return None
        finally:
            self._state, self.commands, self.line = state, commands, line
        lines = [text for text in printed if text is not None]
        return "\n".join(lines).rstrip("\n") if lines and len(lines) == len(printed) else None

    # -- conditions and loops -----------------------------------------------------------------------------------

    def file_is(self, operator: str, path: str) -> bool | None:
        test = _FILE_TESTS.get(operator)
        return None if test is None else bool(path) and test(self._path(path))

    def _loop(self, node: Loop) -> None:
        self.line = node.line
        self._loops += 1
        try:
            if node.kind == "for":
                items = None if node.items is None else [word for item in node.items for word in self._words(item)]
                if items is None or any(UNKNOWN.search(item) for item in items):
                    super()._loop(node)
                    return
                for item in items:
                    self._set(node.variable, item)
                    if not self._round(node):
                        return
                return
            for _ in range(_MOST_ROUNDS):
                status = self._condition(node.condition)
                if status is None:
                    super()._loop(node)
                    return
                if status is (node.kind == "until") or not self._round(node):
                    return
            raise UsageError(f"{self._where}:{node.line}: a loop of more than {_MOST_ROUNDS:,} rounds is not followed")
        finally:
            self._loops -= 1

    def _round(self, node: Loop) -> bool:
        try:
            self.run(node.body)
        except _LoopEnds as end:
            return end.goes_on
        return True

    def _argument_command(self, name: str, rest: list[str]) -> None:
        if name in ("break", "continue") and self._loops:
            raise _LoopEnds(goes_on=name == "continue")
        super()._argument_command(name, rest)

    # -- commands ---------------------------------------------------------------------------------------------------

    def _command(self, words: list[str], variables: dict[str, str], node: Simple) -> Status:
        name, rest = (words[0], words[1:]) if words else ("", [])
        if name in ("cd", "pushd"):
            targets = [word for word in rest if not word.startswith("-")]
            if not targets or UNKNOWN.search(targets[0]):
                self._state.variables["PWD"] = self._unknown("$PWD", f"line {self.line} goes to another folder")
            else:
                self._set("PWD", os.path.normpath(self._path(targets[0])))
            return True
        if name in ("source", ".") and rest and os.path.isfile(self._path(rest[0])):
            self.run(parse(read_text(self._path(rest[0]), LARGEST_BYTES), rest[0]))
            return True
        return super()._command(words, variables, node)

    def _record(self, words: list[str], variables: dict[str, str], node: Simple) -> None:
        super()._record(words, variables, node)
        self.commands[-1] = replace(self.commands[-1], folder=self._spelt(self._folder))


def _printed_by(command: ShellCommand) -> str | None:
    """What a program prints that asks for nothing but names, the time and this machine; None for others."""
    if command.unknown:
        return None
    name, words = command.words[0], [word for word in command.words[1:] if not word.startswith("-")]
    match name:
        case "pwd":
            return command.folder
        case "echo":
            return " ".join(words)
        case "dirname" if words:
            return os.path.dirname(words[0].rstrip("/")) or "."
        case "basename" if words:
            return os.path.basename(words[0].rstrip("/")).removesuffix(words[1] if len(words) > 1 else "")
        case "realpath" | "readlink" if words:
            return os.path.realpath(os.path.join(command.folder, words[0]))
        case "date":
            forms = [word for word in words if word.startswith("+")]
            return time.strftime(forms[0][1:] if forms else "%c")
        case "hostname":
            return platform.node()
        case "nproc":
            return str(os.cpu_count())
        case "which" if words:
            return words[0]
    return None
