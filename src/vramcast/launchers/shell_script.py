"""A shell script as a command: which of the commands in it is the training. It is read, and not run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vramcast.base.errors import UsageError
from vramcast.base.input_files import read_text
from vramcast.launchers.shell import LARGEST_BYTES, ShellCommand, follow_started

_SHELLS = re.compile(r"(?:ba|da|k|z)?sh")
_ENDINGS = (".sh", ".bash", ".zsh", ".ksh")

_TRAINS = re.compile(r"train|tun(?:e|ing)|distill|\bfit\b|(?:^|[/_.])(?:main|sft|dpo|run)", re.IGNORECASE)
_CERTAINLY = re.compile("train|finetun", re.IGNORECASE)
_DOES_NOT = re.compile(
    r"\b(?:pip|setup\.py|ensurepip|venv|http\.server|json\.tool|collect_env)$"
    r"|(?:^|[/_.])(?:test|eval|infer|preproc|prepro|prepare|download|convert|sampl|generat|export|demo|plot|visual)\w*(?:\.py)?$",
    re.IGNORECASE,
)
"""Programs beside a training: those that come before or after it."""


@dataclass(frozen=True, slots=True)
class Script:
    """A shell script that is to be started."""

    text: str
    where: str
    """Its path, as it was typed."""
    arguments: list[str]


@dataclass(frozen=True, slots=True)
class Training:
    words: list[str]
    environment: dict[str, str]
    folder: str
    """Where it is started, if not here."""
    notes: tuple[str, ...]


def recognised(words: Sequence[str]) -> Script | None:
    """None: the command starts no shell script."""
    if not words:
        return None
    rest = list(words[1:])
    if _SHELLS.fullmatch(os.path.basename(words[0])):
        while rest and re.fullmatch("[-+][a-zA-Z]+", rest[0]):
            option = rest.pop(0)
            if "c" in option and rest:
                return Script(rest[0], f"{words[0]} {option}", rest[2:])
            if option.endswith("o") and rest:  # -o pipefail
                rest.pop(0)
        if rest and os.path.isfile(rest[0]):
            return Script(read_text(rest[0], LARGEST_BYTES), rest[0], rest[1:])
        raise UsageError(f"no such script: {rest[0]}" if rest else f"{words[0]}: name the script that it runs")
    if os.path.isfile(words[0]) and _is_for_a_shell(words[0]):
        return Script(read_text(words[0], LARGEST_BYTES), words[0], rest)
    return None


def _is_for_a_shell(path: str) -> bool:
    if path.endswith(_ENDINGS):
        return True
    with open(path, "rb") as file:
        first = file.read(128).partition(b"\n")[0].split()
    return bool(first) and first[0].startswith(b"#!") and _SHELLS.fullmatch(_name(first[-1])) is not None


def _name(path: bytes) -> str:
    return os.path.basename(path.decode(errors="replace"))


def training_of(
    script: Script, environment: Mapping[str, str], program_of: Callable[[list[str]], tuple[str, bool] | None]
) -> Training:
    """The command of the script that trains. `program_of`: the program that words start, and whether a launcher starts
    it; None for what is neither Python nor a shell script."""
    followed = follow_started(script.text, script.where, script.arguments, environment, os.getcwd())
    programs = [(command, program) for command in followed.commands if (program := program_of(command.words))]
    chosen = _trainings(programs)
    if not chosen:
        ended = f", which ends in line {followed.exit_line}" if followed.exit_line is not None else ""
        raise UsageError(
            f"{script.where}: no command that starts a training was found in this shell script{ended}; write the "
            "command that it starts, e.g. vramcast run python train.py"
        )
    if len({program for _, (program, _) in chosen}) > 1:
        lines = "".join(f"\n  {shlex.join(command.words)[:200]}" for command, _ in chosen)
        raise UsageError(f"{script.where} starts several programs; write the command of one of them:{lines}")
    command = chosen[0][0]
    line = f"{script.where}:{command.first_line + 1}"
    if command.unknown:
        spelt, why = next(iter(command.unknown.items()))
        raise UsageError(
            f"{line}: {spelt} is not known here: {why}; write the command itself: "
            f"vramcast run {shlex.join(command.words)}"
        )
    first = f", the first of {len(chosen)}" if len(chosen) > 1 else ""
    text = f"{line} is the training{first}; the shell script itself was read, and not run"
    if not os.path.isdir(command.folder):
        raise UsageError(f"{line}: it is started in {command.folder}, and there is no such folder here")
    others = [shlex.join(other.words) for other, program in programs if program != chosen[0][1]]
    if others:
        text += f", nor `{others[0][:200]}`" + (f" and {len(others) - 1} more" if len(others) > 1 else "")
    folder = "" if command.folder == os.getcwd() else command.folder
    return Training(command.words, command.environment, folder, (text, *command.assumed))


_Program = tuple[ShellCommand, tuple[str, bool]]


def _trainings(programs: list[_Program]) -> list[_Program]:
    """Those that a launcher starts, else those that bear the name of a training, else all that do not bear another."""
    left = [entry for entry in programs if _CERTAINLY.search(entry[1][0]) or not _DOES_NOT.search(entry[1][0])]
    launched = [entry for entry in left if entry[1][1]]
    named = [entry for entry in launched or left if _TRAINS.search(entry[1][0])]
    return named or launched or left
