"""Commands that name a config file instead of flags: `llamafactory-cli train FILE`, `axolotl train FILE`,
`tune run RECIPE --config FILE`, `swift sft FILE`, `torchrun train.py FILE`. What follows the file changes its keys."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.readers import Part, Request, recognise
from vramcast.jobs.readers.command_line import Command, flags_of, launcher_flags, plain_value, script_name
from vramcast.jobs.readers.documents import beside, check_readable, read_document
from vramcast.jobs.text_files import reading_instead
from vramcast.launchers import take_apart

_SUFFIXES = (".yaml", ".yml", ".json")
_PROGRAMS = {
    "llamafactory-cli": ("train",), "lmf": ("train",), "axolotl": ("train",), "swift": ("sft", "pt", "rlhf"),
    "unsloth": ("train",),
}  # fmt: skip
"""Programs that take a file, or --config FILE, after one of these verbs."""
_TORCHTUNE = ("tune", "run")
_CONFIG = "config"
_OF_TRAINER = ("per_device_train_batch_size", "model_name_or_path", "gradient_accumulation_steps", "train_batch_size")
"""Flags that say how to train, beside a file that may do so too."""
_PROCESSES, _MACHINES = "nproc_per_node", "nnodes"


@dataclass(frozen=True, slots=True)
class ConfigCommand:
    file: str
    command: Command
    """Launcher and script; its flags change keys of the file."""
    is_certain: bool
    """The program is known to take a config. Another script may take the file for something else."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key → value."""


def find(words: Sequence[str]) -> ConfigCommand | None:
    """None: the command names no config file in such a way."""
    if tuple(words[:2]) == _TORCHTUNE:
        return _of_torchtune(words)
    if words and words[1:2] and words[1] in _PROGRAMS.get(os.path.basename(words[0]), ()):
        command = Command(launcher=os.path.basename(words[0]), script=words[1])
        return _found(words[2:], command, is_certain=True)
    try:
        parts = take_apart(words)
    except UsageError:
        return None
    if parts is None or parts.runs_any_program:
        return None
    script = script_name(parts.target)
    arguments = parts.arguments
    is_module = script in ("axolotl.cli.train", "llamafactory.cli", "llamafactory.launcher")
    if script == "llamafactory.cli":
        arguments = arguments[1:]
    return _found(arguments, Command(parts.name, launcher_flags(parts), script), is_certain=is_module)


def _of_torchtune(words: Sequence[str]) -> ConfigCommand | None:
    """Its own options are those of torchrun; the recipe stands where a script would."""
    try:
        parts = take_apart(["torchrun", *words[2:]])
    except UsageError:
        return None
    if parts is None:
        return None
    return _found(parts.arguments, Command(_TORCHTUNE[0], launcher_flags(parts), parts.target), is_certain=True)


def _found(arguments: Sequence[str], command: Command, *, is_certain: bool) -> ConfigCommand | None:
    """The file comes first, or after --config where the program is known to have that."""
    pairs = [word.split("=", 1) for word in arguments if "=" in word and not word.startswith("-")]
    rest = [word for word in arguments if "=" not in word or word.startswith("-")]
    flags = flags_of(rest)
    named = flags.pop(_CONFIG, None) if is_certain else None
    is_first = bool(rest) and not rest[0].startswith("-") and rest[0].lower().endswith(_SUFFIXES)
    file = rest[0] if is_first else named
    if not isinstance(file, str):
        return None
    return ConfigCommand(file, command, is_certain, {**{name: plain_value(text) for name, text in pairs}, **flags})


def read_part(found: ConfigCommand, folder: Path, where: str, request: Request) -> Part | None:
    """What the file says, with the changes of the command. None: the file is none that says how to train."""
    path = beside(found.file, folder)
    has_flags = any(name in _OF_TRAINER for name in found.changes)
    if not os.path.exists(path):
        if has_flags and not found.is_certain:
            return None  # a file of data, perhaps: the flags say how to train
        cure = f"; `tune cp {found.file} FILE` copies it" if found.command.launcher == _TORCHTUNE[0] else ""
        raise UsageError(f"{where}: no such file: {found.file}{cure}")
    reader: Any = recognise(path)
    if not hasattr(reader, "read_part"):
        if has_flags and not found.is_certain:
            return None
        check_readable(path)
        raise UsageError(
            f"{where}: {found.file} is not recognised as a config that says how to train; write what it says into a "
            "vramcast.yaml (`vramcast init`)"
        )
    if has_flags and not found.is_certain:
        raise UsageError(
            f"{where}: {found.file} and flags beside it: say which counts, e.g. `vramcast predict {found.file}` with "
            "--batch and the like"
        )
    texts = {path: _changed(path, found.changes)} if found.changes else {}
    with reading_instead(texts):
        part: Part = reader.read_part(path, request)
    return _distributed(part, found.command)


def _changed(path: Path, changes: Mapping[str, Any]) -> str:
    """JSON is YAML, too."""
    data = read_document(path).data
    for name, value in changes.items():
        place, keys = data, name.split(".")
        for key in keys[:-1]:
            place = place.setdefault(key, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise UsageError(f"{path}: {name}: there is no such place in the file")
        place[keys[-1]] = value
    return json.dumps(data, default=str)


def _distributed(part: Part, command: Command) -> Part:
    """torchtune's distributed recipes shard over all processes."""
    processes, machines = (command.launcher_flags.get(name, 1) for name in (_PROCESSES, _MACHINES))
    if command.launcher != _TORCHTUNE[0] or not command.script.endswith("_distributed"):
        return part
    if not isinstance(processes, int) or not isinstance(machines, int) or "count" in part.data.get("gpus", {}):
        return part
    gpus = {"strategy": "fsdp", **part.data.get("gpus", {}), "count": processes * machines}
    assumed = {key: text for key, text in part.assumed.items() if key != "gpus"}
    return dataclasses.replace(part, data={**part.data, "gpus": gpus}, assumed=assumed)
