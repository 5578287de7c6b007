"""A shell script that starts a training (bash train.sh): which commands it starts.

The shell runs it, without the programs that it calls: those that start Python or a launcher are written down and end at
once, tools for text and files work, and what else is called does nothing. Files are written, so this is for where the
overlay holds child processes, too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vramcast.base.errors import UsageError
from vramcast.launchers import prefixes
from vramcast.launchers.command import read_command

_SHELLS = ("bash", "sh", "zsh", "dash", "source", ".")
_SHELL_LINE = re.compile(rb"#!\s*\S*(/|env )(ba|z|da)?sh\b")
_PYTHON = ("python", "python3", "python2", f"python3.{sys.version_info.minor}")
_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds", "fabric", "lightning")
_OTHERS = ("uv", "poetry", "pdm", "pipenv", "conda", "mamba", "micromamba", "numactl", "taskset", "sudo", "srun")
"""They stand in front of a command, and are written down with it."""
_TOOLS = (
    "awk", "basename", "cat", "cp", "cut", "date", "dirname", "env", "expr", "find", "grep", "head", "hostname", "id",
    "ln", "ls", "mkdir", "mv", "nice", "nohup", "nproc", "readlink", "realpath", "rm", "sed", "seq", "sort", "stdbuf",
    "tail", "tee", "timeout", "touch", "tr", "uname", "uniq", "wc", "which", "whoami", "xargs",
)  # fmt: skip
_LIMIT_S = 20
_TRAINS = re.compile(r"train|tune|pretrain|distill", re.IGNORECASE)
_OF_THE_SHELL = re.compile(r"PATH|PWD|OLDPWD|SHLVL|_|BASH_ENV|BASH_FUNC_.*|VRAMCAST_\w+")

_RECORD = """#!/bin/sh
{{ printf '%s\\0' "$PWD" "$(( $# + 1 ))" {name} "$@"; env -0; }} > "$(mktemp {folder}/$(date +%s%N).XXXXXX)"
"""
_PYTHON_SHIM = """#!/bin/sh
case "${{1--}}" in -c*|-|-V|--version) exec {python} "$@";; esac
""" + _RECORD.partition("\n")[2]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Started:
    """A command that a script starts."""

    words: list[str]
    folder: str
    variables: Mapping[str, str]
    """That the script sets for it."""

    @property
    def assigned(self) -> list[str]:
        """The command with these variables in front of it."""
        return [*(f"{name}={value}" for name, value in self.variables.items()), *self.words]


def is_shell_command(words: Sequence[str]) -> bool:
    rest = prefixes.strip(words).words
    if not rest:
        return False
    if os.path.basename(rest[0]) in _SHELLS:
        return len(rest) > 1
    try:
        with open(rest[0], "rb") as file:
            return bool(_SHELL_LINE.match(file.read(128)))
    except OSError:
        return False


def training_of(words: Sequence[str]) -> tuple[Started, list[Started]]:
    """The command that a shell script trains with, and all that it starts. UsageError where it starts none."""
    started = [each for each in _started_by(words) if _is_training(each.words)]
    if not started:
        raise UsageError(
            f"{shlex.join(words)} starts no Python program that could be seen: write the python command that it starts "
            "in the end, e.g. vramcast run python train.py"
        )
    chosen = next((each for each in started if _TRAINS.search(" ".join(_program(each.words)))), started[0])
    return chosen, started


def _started_by(words: Sequence[str]) -> list[Started]:
    stripped = prefixes.strip(words)
    rest = stripped.words
    bash = shutil.which("bash")
    if bash is None:
        raise UsageError(f"{rest[0]}: there is no bash here to read it; write the python command that it starts")
    command = rest[1:] if os.path.basename(rest[0]) in _SHELLS else rest
    around = {**os.environ, **stripped.environment}
    with tempfile.TemporaryDirectory() as scratch:
        programs, records = Path(scratch) / "programs", Path(scratch) / "records"
        records.mkdir()
        _put_programs(programs, records)
        unknown = Path(scratch) / "unknown.sh"
        unknown.write_text("command_not_found_handle() { return 0; }\n")
        given = {**around, "PATH": str(programs), "BASH_ENV": str(unknown)}
        shell = subprocess.Popen(
            [bash, *command], env=given, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, 9)
            shell.wait()
        return [_read(path, around, stripped.environment) for path in sorted(records.iterdir())]


def _put_programs(folder: Path, records: Path) -> None:
    folder.mkdir()
    for name in _TOOLS:
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(found)
    for name in (*_PYTHON, *_LAUNCHERS, *_OTHERS):
        shim = _PYTHON_SHIM if name in _PYTHON else _RECORD
        # The tools by their own paths: a script may change PATH.
        tools = f"PATH={shlex.quote(os.environ.get('PATH', os.defpath))}"
        text = shim.format(name=name, folder=shlex.quote(str(records)), python=shlex.quote(sys.executable))
        (folder / name).write_text(text.replace("env -0", f"{tools} env -0").replace("mktemp", f"{tools} mktemp"))
        (folder / name).chmod(0o755)


def _read(path: Path, around: Mapping[str, str], given: Mapping[str, str]) -> Started:
    folder, count, *rest = os.fsdecode(path.read_bytes()).split("\0")
    words, variables = rest[: int(count)], dict(each.partition("=")[::2] for each in rest[int(count) :] if each)
    changed = {
        name: value
        for name, value in variables.items()
        if (around.get(name) != value or name in given) and not _OF_THE_SHELL.fullmatch(name)
    }
    return Started(words, folder, changed)


def _program(words: Sequence[str]) -> list[str]:
    try:
        launch = read_command(words)
    except UsageError:
        return []
    return [launch.target]


def _is_training(words: Sequence[str]) -> bool:
    """Whether the command starts a program, and not a tool of Python's (pip, venv, ...)."""
    if os.path.basename(words[0]) in _LAUNCHERS:
        return len(words) > 1 and words[1] not in ("config", "env", "--version", "--help")
    program = _program(words)
    return bool(program) and program[0] not in ("pip", "venv", "ensurepip", "site", "http.server")
