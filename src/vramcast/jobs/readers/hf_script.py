"""The command that starts a Hugging Face training script, in a shell script or after `--`. It is read, never run."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError, VramcastError
from vramcast.jobs.readers import (
    Part,
    Reading,
    Request,
    accelerate,
    combine,
    config_commands,
    diffusers_scripts,
    hf_arguments,
    hf_names,
    kohya,
    llama_factory,
    megatron,
    ms_swift,
    trl,
    ultralytics,
    unsloth,
)
from vramcast.jobs.readers.command_line import Command, parse_command, split_environment
from vramcast.jobs.readers.documents import beside, read_document
from vramcast.jobs.readers.keys import Keys
from vramcast.jobs.text_files import read_text
from vramcast.launchers.shell import ShellCommand, follow
from vramcast.trace import Note

NAME = "command of a Hugging Face training script"

_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".txt", ".cmd")
MARKS = (
    "--per_device_train_batch_size", "--model_name_or_path", "--gradient_accumulation_steps",
    "--pretrained_model_name_or_path", "--train_batch_size", "--network_module",
)  # fmt: skip
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_MEGATRON = re.compile(r"^\s*(megatron (?:sft|pt|rlhf))\b", re.MULTILINE)
"""A command of ms-swift that trains with Megatron."""
_NAMES_CONFIG = re.compile(
    r"\b(?:(?:llamafactory_cli|lmf|axolotl|unsloth) train|swift (?:sft|pt|rlhf)|tune run)\b"
    r"|\b(?:accelerate launch|torchrun|deepspeed|python3?)\b[^|;&]*\.py\s+[\w./]+\.(?:ya?ml|json)\b"
)
"""A command that names a config file, in a text with _ in place of -."""
_UNSLOTH, _SWIFT, _TUNE = "unsloth-cli", "swift", "tune"
_OPENRLHF = "openrlhf.cli."
_PROCESSES_OF_SWIFT = "NPROC_PER_NODE"
_PRECISIONS = ("bf16", "fp16", "mixed_precision")
_OF_LAUNCHER = ("gpus", "checkpointing", "torch_compile")
PROCESSES = ("nproc_per_node", "num_processes", "num_gpus")
_MACHINES = ("nnodes", "num_machines", "num_nodes")


def recognises(path: Path) -> bool:
    try:
        if path.suffix.lower() not in _SUFFIXES or not os.path.isfile(path):
            return False
        text = read_text(path).replace("-", "_")
    except (OSError, VramcastError):
        return False
    marked = any(mark.replace("-", "_") in text for mark in MARKS)
    return marked or any(pattern.search(text) for pattern in (_MEGATRON, _NAMES_CONFIG))


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    command = training_command(read_text(path), str(path))
    where = f"{path}:{command.first_line + 1}"
    part = part_from_words(command.words, path.parent, where, request, command.environment, command.unknown)
    notes = (Note("assumed", "; ".join(command.assumed), str(path)),) if command.assumed else ()
    return dataclasses.replace(part, where=str(path), notes=(*part.notes, *notes))


def training_command(text: str, where: str) -> ShellCommand:
    """The one command of a shell script that starts a training."""
    megatron = _MEGATRON.search(text)
    if megatron is not None:
        line = text.count("\n", 0, megatron.end())
        raise CannotPredict(
            f"{where}:{line + 1}: {megatron[1]}: training with Megatron's own parallel layers is not modelled; the "
            "same model with `swift sft` is, and `vramcast plan` says how many cards its sharding needs"
        )
    followed = follow(text, where)
    trainings = [command for command in followed.commands if _is_training(command.words)]
    if len(trainings) != 1:
        ended = f" before it ends in line {followed.exit_line}, without arguments" if followed.exit_line else ""
        raise UsageError(
            f"{where}: {len(trainings) or 'none'} of its commands{ended} start a training with {MARKS[0]} or the like; "
            "one is needed. Or write it after --: vramcast predict -- torchrun train.py ..."
        )
    return trainings[0]


def part_from_words(
    words: list[str],
    folder: Path,
    where: str,
    request: Request,
    environment: Mapping[str, str] | None = None,
    unknown: Mapping[str, str] | None = None,
) -> Part:
    """Paths in a command are those of the folder in which it is started: here, or where the shell script lies."""
    variables, words = split_environment(words)
    variables = {**(environment or {}), **variables}
    if ultralytics.is_one(words):
        return ultralytics.part_from_words(words, folder, where, request)
    if any(_OPENRLHF in word for word in words):
        raise CannotPredict(
            f"{where}: OpenRLHF has trainings and losses of its own, which are not read from its flags; where it is "
            "installed, `vramcast run` and the command runs the program itself"
        )
    if megatron.is_command(words):
        megatron.refuse(where, " ".join(words))
    conf = next((variables[name] for name in ALLOCATOR_VARIABLES if variables.get(name)), None)
    command = parse_command(words, where, unknown, hf_names.WITHOUT_EFFECT)
    started = variables.get(_PROCESSES_OF_SWIFT, "")
    if command.launcher == _SWIFT and started.isdecimal() and 0 < len(started) < 6:
        command = dataclasses.replace(command, launcher_flags={PROCESSES[0]: int(started)})
    part = _part(command, folder, where, request, config_commands.find(words))
    return dataclasses.replace(part, data={**part.data, "allocator_conf": conf}) if conf else part


def _part(
    command: Command, folder: Path, where: str, request: Request, config: config_commands.ConfigCommand | None = None
) -> Part:
    from_file = None
    if config is not None and config.command.launcher != _SWIFT:
        from_file = config_commands.read_part(config, folder, where, request)
    if config is not None and from_file is not None:
        launched = _launcher(config.command, folder, where, request) if config.command.launcher != _TUNE else None
        return from_file if launched is None else _under(launched, from_file, _says_precision(from_file))
    if config is not None and config.command.launcher == _SWIFT:
        command = dataclasses.replace(command, script=config.command.script, flags=_of_swift(config, folder))
    if command.launcher != _SWIFT and command.script in hf_names.OTHER_TRAININGS:
        raise CannotPredict(
            f"{where}: {command.script} trains with a second model, generated text or images: not modelled; "
            "describe it in a vramcast.yaml, or run the script with `vramcast run`"
        )
    launched = _launcher(command, folder, where, request)
    precision = launched.data.get("precision", {}).get("preset") if launched else None
    part = _arguments(command, Keys(command.flags, where), folder, request, precision)
    if launched is None:
        return _named(part)
    own_precision = any(command.flags.get(name) for name in _PRECISIONS) or reader_of_images(command) is not None
    return _under(launched, _named(part), own_precision)


def _under(launched: Part, part: Part, own_precision: bool) -> Part:
    """What the script says, as the launcher starts it."""
    data = combine.merge(dict(part.data), {name: launched.data[name] for name in _OF_LAUNCHER if name in launched.data})
    if not own_precision:  # the script's own wins, as in the Trainer
        data = combine.merge(data, {"precision": launched.data.get("precision", {})})
    return dataclasses.replace(
        part, data=data, notes=(*part.notes, *launched.notes),
        assumed={**part.assumed, **launched.assumed}, unsupported={**part.unsupported, **launched.unsupported},
    )  # fmt: skip


def _says_precision(part: Part) -> bool:
    said = part.data.get("precision") or {}
    return any(said.get(name) not in (None, "fp32", "none") for name in ("preset", "weights", "autocast"))


def _of_swift(config: config_commands.ConfigCommand, folder: Path) -> dict[str, Any]:
    """`swift sft FILE`: flags win over what the file says."""
    document = read_document(beside(config.file, folder)).data
    return {**(document if isinstance(document, dict) else {}), **config.changes}


def _named(part: Part) -> Part:
    """The command, and whose it is where that is known."""
    plain = part.recognised_as == hf_arguments.NAME
    return dataclasses.replace(part, recognised_as=NAME if plain else f"command: {part.recognised_as}")


def _arguments(command: Command, keys: Keys, folder: Path, request: Request, precision: str | None) -> Part:
    """The flags, as the script that they are for reads them. `precision`: as the launcher says it."""
    if kohya.is_one(command.script, command.flags):
        return kohya.part_from(keys, folder, request, command.script, precision)
    if diffusers_scripts.is_one(command.script, command.flags):
        return diffusers_scripts.part_from(keys, folder, request, command.script, precision)
    if command.launcher == _SWIFT or any(name in command.flags for name in ms_swift.MARKS):
        processes = command.launcher_flags.get(PROCESSES[0])
        count = processes if isinstance(processes, int) and processes > 0 else 1
        return ms_swift.part_from(command.flags, keys.where, folder, request, command.script, count)
    if any(name in command.flags for name in llama_factory.MARKS):
        return llama_factory.part_from(keys, folder, request)
    if command.script == _UNSLOTH:
        return unsloth.part_from_flags(keys, folder, request)
    if command.script in trl.TRAINERS:
        return trl.part_from(_with_config(keys, command, folder), folder, request, trl.TRAINERS[command.script])
    return hf_arguments.part_from(keys, folder, request, hf_names.SCRIPT_TASKS.get(command.script))


def reader_of_images(command: Command) -> Any:
    """The module that reads the flags of a script that trains diffusion models, and says them; None for others. It is
    told the launcher's precision, and decides on one."""
    readers = (kohya, diffusers_scripts)
    return next((reader for reader in readers if reader.is_one(command.script, command.flags)), None)


def _with_config(keys: Keys, command: Command, folder: Path) -> Keys:
    """`trl sft --config FILE`: flags win over what the file says."""
    file = keys.text("config")
    if file is None:
        return keys
    document = read_document(beside(file, folder)).data
    said = document if isinstance(document, dict) else {}
    return Keys({**said, **{name: value for name, value in command.flags.items() if name != "config"}}, keys.where)


def _is_training(words: list[str]) -> bool:
    names = {word.partition("=")[0].replace("-", "_") for word in words}
    if any(mark.replace("-", "_") in names for mark in MARKS):
        return True
    return config_commands.find(split_environment(words)[1]) is not None


def _launcher(command: Command, folder: Path, where: str, request: Request) -> Part | None:
    """How many processes torchrun, accelerate launch or deepspeed start, and accelerate's config file."""
    flags = Keys(command.launcher_flags, f"{where}: {command.launcher}")
    part: Part | None = None
    file = flags.text("config_file") if command.launcher == "accelerate" else None
    if file is not None:
        part = accelerate.read_part(beside(file, folder), request)
    gpus: dict[str, Any] = dict(part.data.get("gpus", {})) if part else {}
    processes = next((flags.whole(name) for name in PROCESSES if _is_whole(flags.take(name))), None)
    machines = next((flags.whole(name) for name in _MACHINES if _is_whole(flags.take(name))), None)
    if processes is not None:
        # accelerate counts the processes of all machines, the others those of each.
        gpus["count"] = processes * (1 if command.launcher == "accelerate" else machines or 1)
    for flag, strategy in (("use_fsdp", "fsdp"), ("use_deepspeed", "deepspeed")):
        if flags.take(flag):
            gpus["strategy"] = strategy
    stage = flags.whole("zero_stage", least=0, most=3) if "zero_stage" in flags else None
    if stage is not None:
        gpus |= {"strategy": "deepspeed", "zero_stage": stage}
    data: dict[str, Any] = {**(part.data if part else {}), "gpus": gpus}
    precision = flags.text("mixed_precision", ("no", "fp16", "bf16"))
    if precision is not None:
        data["precision"] = {"preset": "fp32" if precision == "no" else precision}
    if not gpus and "precision" not in data:
        return None
    return Part(
        data=data, recognised_as=NAME, where=where, notes=part.notes if part else (),
        assumed=part.assumed if part else {}, unsupported=part.unsupported if part else {},
    )  # fmt: skip


def _is_whole(value: Any) -> bool:
    """torchrun also takes `--nproc_per_node gpu`, which says nothing here."""
    return type(value) is int
