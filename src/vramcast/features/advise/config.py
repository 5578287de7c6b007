"""What to paste: a diff of the user's own files, their own flags, or the options of vramcast that say the same."""

from __future__ import annotations

import dataclasses
import difflib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.features.advise.option import Option
from vramcast.features.advise.result import ConfigText
from vramcast.gpus import GpuSpec
from vramcast.jobs.code_places import code_in
from vramcast.jobs.editing.by_hand import by_hand
from vramcast.jobs.editing.rewrite import Rewritten, rewrite
from vramcast.jobs.editing.yaml_text import one_line
from vramcast.jobs.load import FLAGS, LoadedJob
from vramcast.jobs.readers import factory
from vramcast.jobs.text_files import read_text

_OPTIONS = {
    "sizes.batch": "--batch",
    "sizes.sequence": "--seq",
    "sizes.frames": "--frames",
    "sizes.height": "--height",
    "sizes.width": "--width",
    "precision": "--precision",
    "optimizer": "--optimizer",
    "checkpointing": "--checkpointing",
}


def config_text(loaded: LoadedJob, changes: Mapping[str, Any], card: str) -> ConfigText:
    """`card`: the options that name the card."""
    every = {**loaded.overrides, **changes}
    if not loaded.where:
        return ConfigText(kind="changes", text=_fields(changes))
    rewritten = rewrite(loaded, changes)
    if not rewritten.says_something:
        of_python = factory.is_factory(loaded.where) and not os.path.exists(loaded.where)
        fields = tuple(_fields(changes).splitlines()) if of_python else ()
        command = vramcast_command(loaded, every, card, loaded.request.arguments)
        return ConfigText(kind="command", text=command, beside=fields, check=command)
    check = vramcast_command(loaded, rewritten.beside, card, rewritten.arguments)
    parts = [_diff(path, read_text(path), text) for path, text in rewritten.texts.items()]
    if rewritten.changed_arguments:
        parts.append(own_command(rewritten))
    kind = "diff" if rewritten.texts else "flags"
    return ConfigText(kind=kind, text="\n".join(parts), beside=by_hand(loaded.job, rewritten.beside), check=check)


def said_by_config(loaded: LoadedJob, options: Mapping[str, list[Option]]) -> dict[str, list[Option]]:
    """The same options, each with whether the user's own files can say it."""
    if not loaded.where or not Path(loaded.where).is_file():
        return dict(options)

    def is_said(option: Option) -> bool:
        return option.knob == "allocator" or not rewrite(loaded, option.changes).beside

    return {
        knob: [dataclasses.replace(option, in_config=is_said(option)) for option in of_knob]
        for knob, of_knob in options.items()
    }


def own_command(rewritten: Rewritten) -> str:
    """The training command, as the user would type it."""
    return shlex.join(rewritten.arguments)


def vramcast_command(
    loaded: LoadedJob, overrides: Mapping[str, Any], card: str, arguments: tuple[str, ...], verb: str = "check"
) -> str:
    """The command that predicts the job with these changes put on top of what its files say."""
    words = ["vramcast", verb, *([loaded.where or loaded.job.name] if loaded.where != FLAGS else [])]
    words += _option_words(overrides)
    request = loaded.request
    words += ["--model", request.model] if request.model else []
    words += [word for part in request.parts for word in ("--with", part)]
    words += ["--trust-remote-code"] if request.trust_remote_code else []
    words += ["--allow-code"] if loaded.where and request.gate.allowed and code_in(loaded.job) else []
    command = f"{shlex.join(words)} {card}".rstrip()
    return f"{command} -- {shlex.join(arguments)}" if arguments else command


def options_text(overrides: Mapping[str, Any]) -> str:
    """The options of vramcast that say these changes."""
    return shlex.join(_option_words(overrides))


def _option_words(overrides: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in overrides.items():
        if key in _OPTIONS and isinstance(value, (str, int)):
            words += [_OPTIONS[key], str(value)]
        else:
            words += ["--set", f"{key}={one_line(value)}"]
    return words


def card_options(gpu: str | GpuSpec | None, memory: str | int | None, device: int | None, card: GpuSpec) -> str:
    """The options that name the card again."""
    words = []
    if gpu is not None:
        words += ["--gpu", gpu if isinstance(gpu, str) else gpu.id]
    if memory is not None:
        words += ["--memory", str(memory)]
    if device is not None:
        words += ["--device", str(device)]
    return shlex.join(words or ["--gpu", card.id])


def _fields(changes: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}: {one_line(value)}" for key, value in changes.items())


def _diff(path: Path, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), n=1, lineterm="")
    return "\n".join(lines)
