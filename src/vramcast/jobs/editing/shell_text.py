"""Change flags of a training command: in the text of a shell script, or in the words of a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramcast.launchers.shell import ShellCommand

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|(?!--)[^\s\\]+)"""
_GAP = r"(?:[ \t]+|[ \t]*\\\n[ \t]*)"
_VARIABLE = re.compile(r"""["']?\$(?:\{(\w+)(?::?-[^}]*)?\}|(\w+))["']?""")

SWITCH_ON, SWITCH_OFF = "switch on", "switch off"
"""In place of a value: the flag stands alone, or is taken away."""


def edit_script(
    text: str, command: ShellCommand, flags: Mapping[str, Any], environment: Mapping[str, str], anchors: tuple[str, ...]
) -> str:
    """`command`: the one to change. New flags come after the first of `anchors` in it, new variables before it."""
    lines = text.splitlines(keepends=True)
    before = "".join(lines[: command.first_line])
    inside = "".join(lines[command.first_line : command.last_line + 1])
    after = "".join(lines[command.last_line + 1 :])
    for name, value in flags.items():
        flag = _flag(name).search(inside)
        if value in (SWITCH_ON, SWITCH_OFF):
            inside = _switched(inside, name, value == SWITCH_ON, anchors)
        elif flag is None:
            inside = _insert(inside, f"--{name} {_word(value)}", anchors)
        elif flag["value"] is None:
            inside = inside if value is True else f"{inside[: flag.end()]} {_word(value)}{inside[flag.end() :]}"
        else:
            changed = _assigned(before, inside, flag["value"], _word(value))
            if changed is not None:
                before = changed
            else:
                inside = inside[: flag.start("value")] + _word(value) + inside[flag.end("value") :]
    for name, value in environment.items():
        before, inside = _export(before, inside, name, value)
    return before + inside + after


def edit_words(words: list[str], flags: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    """The same for a command line that is words already; new flags come last."""
    changed = list(words)
    for name, value in flags.items():
        at = next((i for i, word in enumerate(changed) if _name(word) == name), None)
        if value in (SWITCH_ON, SWITCH_OFF):
            changed = [word for word in changed if _name(word) != name]
            changed += [f"--{name}"] if value == SWITCH_ON else []
        elif at is None:
            changed += [f"--{name}", _word(value)]
        elif "=" in changed[at]:
            changed[at] = f"{changed[at].partition('=')[0]}={_word(value)}"
        elif at + 1 < len(changed) and not changed[at + 1].startswith("--"):
            changed[at + 1] = _word(value)
        elif value is not True:
            changed.insert(at + 1, _word(value))
    for name, value in environment.items():
        kept = [word for word in changed if not word.startswith(f"{name}=")]
        changed = [f"{name}={value}", *kept]
    return changed


def _switched(command: str, name: str, on: bool, anchors: tuple[str, ...]) -> str:
    """A flag without a value, added or taken away."""
    switch = re.compile(rf"(?<!\S)--{re.escape(name).replace('_', '[-_]')}(?=\s|$)[ \t]*(?:\\\n[ \t]*)?")
    if not on:
        return switch.sub("", command)
    return command if switch.search(command) else _insert(command, f"--{name}", anchors)


def _flag(name: str) -> re.Pattern[str]:
    spelt = re.escape(name).replace("_", "[-_]")
    return re.compile(rf"(?<!\S)--{spelt}(?:(?:=|{_GAP})(?P<value>{_VALUE}))?(?=\s|$)")


def _name(word: str) -> str:
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def _word(value: Any) -> str:
    return str(value)


def _insert(command: str, flag: str, anchors: tuple[str, ...]) -> str:
    """Insert after the first flag of `anchors`; on a line of its own where that flag has one."""
    anchor = next(match for name in anchors if (match := _flag(name).search(command)))
    line_start = command.rfind("\n", 0, anchor.start()) + 1
    indent = command[line_start : anchor.start()]
    alone = not indent.strip() and line_start > 0
    gap = f" \\\n{indent}" if alone else " "
    return f"{command[: anchor.end()]}{gap}{flag}{command[anchor.end() :]}"


def _assigned(before: str, command: str, value: str, new: str) -> str | None:
    """The text before the command, with a new value for the variable that the flag reads: only where the flag is its
    only use and it is assigned once."""
    variable = _VARIABLE.fullmatch(value)
    name = variable[1] or variable[2] if variable else None
    if name is None or len(re.findall(rf"\$\{{?{name}\b", command)) != 1:
        return None
    assignment = re.compile(rf"^([ \t]*(?:export[ \t]+)?{name}=)(\$\{{{name}:?-)?([^\s#}}]*)(\}}?)", re.MULTILINE)
    assignments = list(assignment.finditer(before))
    uses = re.sub(assignment, "", before)
    if len(assignments) != 1 or re.search(rf"\$\{{?{name}\b", uses):
        return None
    match = assignments[0]
    return f"{before[: match.start()]}{match[1]}{match[2] or ''}{new}{match[4]}{before[match.end() :]}"


def _export(before: str, command: str, name: str, value: str) -> tuple[str, str]:
    assignment = re.compile(rf"(\b{name}=){_VALUE}")
    if assignment.search(command):
        return before, assignment.sub(rf"\g<1>{value}", command)
    if assignment.search(before):
        return assignment.sub(rf"\g<1>{value}", before), command
    indent = command[: len(command) - len(command.lstrip())]
    return f"{before}{indent}export {name}={value}\n", command
