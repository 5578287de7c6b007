"""The command that starts a training, taken apart as text: launcher, script and flags. Nothing is run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vramcast.errors import UsageError

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_ENDS = ("&&", "||", ";", "|", "&", ">", ">>", "2>&1", "<")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Command:
    launcher: str = ""
    """python, torchrun, accelerate, deepspeed, trl, or nothing."""
    launcher_flags: dict[str, Any] = field(default_factory=dict)
    script: str = ""
    """The script's name without folder and .py; trl's verb."""
    flags: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    words: list[str]
    environment: dict[str, str]
    """What was exported before it, or stands in front of it."""
    first_line: int
    last_line: int
    """Of the script, from 0."""


def commands_in(text: str, where: str) -> list[ShellCommand]:
    """The commands of a shell script as words, with its own simple variables put in."""
    variables: dict[str, str] = {}
    exported: dict[str, str] = {}
    found: list[ShellCommand] = []
    for number, last, line in _logical_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"{where}:{number}: not a shell command: {error}") from None
        words = [_substituted(word, variables) for word in words]
        said, rest = split_environment(words)
        variables |= said
        end = next((i for i, word in enumerate(rest) if word in _ENDS), len(rest))
        if rest[:end]:
            found.append(ShellCommand(rest[:end], {**exported, **said}, number - 1, last - 1))
        elif words[:1] == ["export"]:
            exported |= said
    return found


def split_environment(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The assignments in front of a command, and the command."""
    said: dict[str, str] = {}
    for i, word in enumerate(words):
        match = _ASSIGNMENT.fullmatch(word)
        if match is not None:
            said[match[1]] = match[2]
        elif word != "export":
            return said, list(words[i:])
    return said, []


def parse_command(words: Sequence[str], where: str) -> Command:
    """`words` may also be the flags alone."""
    at = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    if at is None and "-m" in words:
        module = words.index("-m") + 1
        launchers = ("torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch")
        at = module if module < len(words) and words[module] not in launchers else None
    if at is None and words and words[0] == "trl":
        at = min(1, len(words) - 1)
    if at is None:
        start = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
        return Command(flags=_flags(words[start:], where))
    head = [word for word in words[:at] if word != "-m"]
    script = words[at].replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    return Command(head[0] if head else "", _flags(head[1:], where), script, _flags(words[at + 1 :], where))


def _flags(words: Sequence[str], where: str) -> dict[str, Any]:
    """--name value, --name=value, --name alone for true, --name a b c for a list."""
    found: dict[str, Any] = {}
    name, values = "", list[str]()

    def keep() -> None:
        if name:
            found[name] = True if not values else _value(values[0]) if len(values) == 1 else [_value(v) for v in values]

    for word in words:
        if word.startswith("--") and len(word) > 2:
            keep()
            name, equals, value = word[2:].partition("=")
            name, values = name.replace("-", "_"), [value] if equals else []
        else:
            values.append(word)
    keep()
    for name, value in found.items():
        unknown = _VARIABLE.search(str(value))
        if unknown:
            raise UsageError(f"{where}: --{name}: {unknown[0]} is not set in the script: write the value instead")
    return found


def _value(word: str) -> Any:
    lower = word.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if lower in ("none", "null"):
        return None
    if _NUMBER.fullmatch(word) and len(word) < 40:
        return int(word) if word.lstrip("+-").isdigit() else float(word)
    if word.startswith("{"):
        try:
            return json.loads(word)
        except (ValueError, RecursionError):
            return word
    return word


def _logical_lines(text: str) -> list[tuple[int, int, str]]:
    """Lines that end in a backslash go on in the next: number of the first, of the last, and all of it."""
    lines: list[tuple[int, int, str]] = []
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        if line.rstrip().endswith("\\"):
            parts.append(line.rstrip()[:-1])
            continue
        lines.append((start, number, " ".join([*parts, line])))
        start, parts = 0, []
    if parts:
        lines.append((start, start + len(parts) - 1, " ".join(parts)))
    return lines


def _substituted(word: str, variables: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return _VARIABLE.sub(value, word)
