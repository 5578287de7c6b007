"""From a command as it is typed to what it starts: prefixes, a launcher with its options, and the program."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from vramcast.base.errors import UsageError
from vramcast.launchers import accelerate, deepspeed, fabric, prefixes, python, shell_script, torchrun
from vramcast.launchers.launch import Launch
from vramcast.launchers.options import Options, OptionTable

_Start = Callable[[Options, Launch, Mapping[str, str]], Launch]


@dataclass(frozen=True, slots=True)
class _Launcher:
    table: OptionTable
    start: _Start
    split: Callable[[list[str]], tuple[dict[str, str | bool], list[str]]]


def _launcher(table: OptionTable, start: _Start) -> _Launcher:
    return _Launcher(table, start, table.split)


_TORCHRUN = _launcher(torchrun.TORCHRUN, torchrun.launch)
_DISTRIBUTED_LAUNCH = _launcher(torchrun.LAUNCH, partial(torchrun.launch, table=torchrun.LAUNCH))
_ACCELERATE = _launcher(accelerate.ACCELERATE, accelerate.launch)
_DEEPSPEED = _launcher(deepspeed.DEEPSPEED, deepspeed.launch)
_FABRIC = _Launcher(fabric.FABRIC, fabric.launch, fabric.split)

_COMMANDS: dict[tuple[str, ...], _Launcher] = {
    ("torchrun",): _TORCHRUN,
    ("accelerate", "launch"): _ACCELERATE,
    ("accelerate-launch",): _ACCELERATE,
    ("deepspeed",): _DEEPSPEED,
    ("ds",): _DEEPSPEED,
    ("fabric", "run", "model"): _FABRIC,
    ("fabric", "run"): _FABRIC,
    ("lightning", "run", "model"): _FABRIC,
    ("lightning", "run"): _FABRIC,
}
_MODULES: dict[tuple[str, ...], _Launcher] = {
    ("torch.distributed.run",): _TORCHRUN,
    ("torch.distributed.launch",): _DISTRIBUTED_LAUNCH,
    ("accelerate.commands.launch",): _ACCELERATE,
    ("accelerate.commands.accelerate_cli", "launch"): _ACCELERATE,
    ("accelerate", "launch"): _ACCELERATE,
    ("deepspeed.launcher.runner",): _DEEPSPEED,
    ("deepspeed",): _DEEPSPEED,
    ("lightning.fabric.cli", "run"): _FABRIC,
    ("lightning_fabric.cli", "run"): _FABRIC,
}
LAUNCHER_NAMES = ("python", "torchrun", "accelerate launch", "deepspeed", "fabric run", "lightning run")


@dataclass(frozen=True, slots=True)
class Parts:
    """A command taken apart as text."""

    launcher: _Launcher | None
    name: str
    """The first word of the launcher; python for a script or a module."""
    options: dict[str, str | bool]
    is_module: bool
    target: str
    arguments: list[str]
    notes: tuple[str, ...] = ()

    @property
    def runs_any_program(self) -> bool:
        """--no-python: what is started is a command again."""
        return "no_python" in self.options


def take_apart(words: Sequence[str]) -> Parts | None:
    """A command without prefixes. None: it starts with no launcher that is known, nor with a script."""
    if not words:
        return None
    name = os.path.basename(words[0])
    launcher = _find(_COMMANDS, [name, *words[1:]])
    if launcher is not None:
        return _launched(name, *launcher)
    if python.NAME.fullmatch(name):
        is_module, target, arguments, notes = python.split(list(words[1:]))
        launcher = _find(_MODULES, [target, *arguments]) if is_module else None
        if launcher is not None:
            return _launched(target.partition(".")[0], *launcher)
        return Parts(None, "python", {}, is_module, target, arguments, notes)
    if words[0].endswith(".py") or os.path.isfile(words[0]):
        return Parts(None, "python", {}, False, words[0], list(words[1:]))
    return None


def read_command(words: Sequence[str], environment: Mapping[str, str] | None = None) -> Launch:
    """What a command starts. UsageError where vramcast cannot follow it."""
    around = os.environ if environment is None else environment
    stripped = prefixes.strip(words)
    around = {name: value for name, value in around.items() if name not in stripped.removed} | stripped.environment
    script = shell_script.recognised(stripped.words)
    if script is not None:
        return _in_shell_script(script, stripped, around)
    parts = take_apart(stripped.words) or _installed_command(stripped.words)
    if parts.runs_any_program:
        inner = read_command([parts.target, *parts.arguments], around)
        target = replace(inner, environment={**stripped.environment, **inner.environment})
    else:
        target = Launch(
            target=parts.target,
            is_module=parts.is_module,
            arguments=tuple(parts.arguments),
            environment=stripped.environment,
        )
    target = replace(target, removed=stripped.removed, notes=(*stripped.notes, *parts.notes, *target.notes))
    return target if parts.launcher is None else parts.launcher.start(parts.options, target, around)


def _in_shell_script(script: shell_script.Script, stripped: prefixes.Stripped, around: Mapping[str, str]) -> Launch:
    training = shell_script.training_of(script, around, _program_of)
    with contextlib.chdir(training.folder or os.curdir):
        inner = read_command(training.words, {**around, **training.environment})
        if not inner.is_module and not os.path.isfile(os.path.join(inner.folder, inner.target)):
            raise UsageError(
                f"{script.where} starts {inner.target}, which is not here; the shell script itself is not run: what it "
                "copies or makes has to be there before"
            )
    return replace(
        inner,
        folder=inner.folder or training.folder,
        environment={**stripped.environment, **training.environment, **inner.environment},
        removed=(*stripped.removed, *inner.removed),
        notes=(*stripped.notes, *training.notes, *inner.notes),
    )


def _program_of(words: list[str]) -> tuple[str, bool] | None:
    """The program that a line of a shell script starts, and whether a launcher starts it."""
    try:
        command = prefixes.strip(words).words
        if shell_script.recognised(command) is not None:
            return " ".join(command[:2]), False
        parts = take_apart(command) or _installed_command(command)
    except UsageError:
        return None
    return parts.target, parts.launcher is not None


def _find(table: Mapping[tuple[str, ...], _Launcher], words: list[str]) -> tuple[_Launcher, list[str]] | None:
    for beginning, launcher in table.items():
        if tuple(words[: len(beginning)]) == beginning:
            return launcher, words[len(beginning) :]
    return None


def _launched(name: str, launcher: _Launcher, words: list[str]) -> Parts:
    options, rest = launcher.split(words)
    if not rest:
        raise UsageError(f"{launcher.table.command}: name the script that it starts")
    return Parts(launcher, name, options, "module" in options, rest[0], rest[1:])


def _installed_command(words: Sequence[str]) -> Parts:
    """A command of a package (trl, litgpt, ...) is a Python script that lies among the programs."""
    if not words:
        raise UsageError(f"name what is to be run: a script, or a command of {', '.join(LAUNCHER_NAMES)}")
    path = shutil.which(words[0])
    if path is not None and _is_python(path):
        return Parts(None, "python", {}, False, path, list(words[1:]))
    if path is not None:
        raise UsageError(
            f"{words[0]} is a program, and vramcast runs Python: write the python command that it starts in the end, "
            f"e.g. vramcast run python train.py ({', '.join(LAUNCHER_NAMES[1:])} are understood)"
        )
    raise UsageError(f"no such script: {words[0]} (nor a command of {', '.join(LAUNCHER_NAMES)})")


def _is_python(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            beginning = file.read(512)
    except OSError:
        return False
    lines = beginning.splitlines()
    if not lines or not lines[0].startswith(b"#!"):
        return False
    # Behind a long path pip writes a line for the shell, and then the interpreter.
    return b"python" in lines[0] or (lines[0] == b"#!/bin/sh" and b"python" in b"".join(lines[1:3]))
