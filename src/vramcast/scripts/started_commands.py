"""Commands that a script starts: their words, and what they are about to do."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.launchers import read_command

_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "srun", "ray")
_SHELL = {"|", "||", "&&", ";"}
_REDIRECTION = re.compile(r"\d?[<>].|&$")


def words_of(args: Any) -> list[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        args = [args]
    words = [os.fsdecode(word) for word in args]
    if len(words) == 1 or (words[1:2] == ["-c"] and os.path.basename(words[0]) in ("sh", "bash")):
        with contextlib.suppress(ValueError):
            return [word for word in shlex.split(words[-1]) if not _REDIRECTION.match(word)]
    return words


def asks_nvidia_smi(words: Sequence[str]) -> bool:
    """And nothing else."""
    return os.path.basename(words[0] if words else "") == "nvidia-smi" and not _SHELL & set(words)


def asks_terminal_size(words: Sequence[str]) -> bool:
    return [os.path.basename(words[0] if words else ""), *words[1:]] == ["stty", "size"]


def may_train(words: Sequence[str]) -> bool:
    for place, word in enumerate(words):
        name = os.path.basename(word)
        if name in _LAUNCHERS:
            return True
        if name.startswith("python"):
            after = [other for other in words[place + 1 :] if not other.startswith("-") or other in ("-m", "-c")]
            return bool(after) and (after[0].endswith(".py") or (after[0] == "-m" and after[1:2] != ["pip"]))
    return False


def command_for(words: Sequence[str]) -> str:
    try:
        started = read_command(words)
    except VramcastError:
        return "vramcast run SCRIPT"
    if started.launcher == "python":
        return f"vramcast run {shlex.join(['-m'] * started.is_module + [started.target, *started.arguments])}"
    return f"vramcast run {shlex.join(['python' if word == sys.executable else word for word in words])}"
