"""What to paste: a diff of the user's own vramcast.yaml, or the options that say the same."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vramcast.advice.yaml_edit import edit_yaml, one_line
from vramcast.errors import UsageError
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.readers import Request, vramcast_yaml
from vramcast.jobs.schema import Job
from vramcast.memory.advice import ConfigText

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
_SUFFIXES = (".yaml", ".yml")
_FOLDERS = ("transformers", "diffusers")


def config_text(loaded: LoadedJob, changes: Mapping[str, Any], card: str) -> ConfigText:
    """`card`: the options that name the card."""
    if not loaded.where:
        return ConfigText(kind="changes", text="\n".join(f"{key}: {one_line(value)}" for key, value in changes.items()))
    edited = edited_file(loaded, changes)
    if edited is None:
        return ConfigText(kind="command", text=command(loaded, changes, card))
    file, before, after = edited
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(file), str(file), n=1, lineterm="")
    return ConfigText(kind="diff", text="\n".join(lines))


def command(loaded: LoadedJob, changes: Mapping[str, Any], card: str) -> str:
    words = ["vramcast", "check", loaded.where or loaded.job.name]
    for key, value in {**loaded.overrides, **changes}.items():
        if key in _OPTIONS and isinstance(value, (str, int)):
            words += [_OPTIONS[key], str(value)]
        else:
            words += ["--set", f"{key}={one_line(value)}"]
    request = loaded.request
    words += ["--model", request.model] if request.model else []
    words += [word for part in request.parts for word in ("--with", part)]
    words += ["--trust-remote-code"] if request.trust_remote_code else []
    return f"{shlex.join(words)} {card}".rstrip()


def edited_file(loaded: LoadedJob, changes: Mapping[str, Any]) -> tuple[Path, str, str] | None:
    """The user's file, its text, and the text with the changes; None where there is no such file, or where the text
    does not come out as the job that was meant."""
    if loaded.recognised_as != vramcast_yaml.NAME or loaded.request.parts:
        return None
    file = vramcast_yaml.file_of(Path(loaded.where))
    if not file.is_file():
        return None
    before = file.read_text(encoding="utf-8")
    try:
        after = edit_yaml(before, {**loaded.overrides, **changes})
        reads = vramcast_yaml.read_text(after, file, loaded.request).job
    except (UsageError, yaml.YAMLError):
        return None
    return (file, before, after) if reads.model_dump() == with_overrides(loaded.job, changes).model_dump() else None


def write_config(path: Path, loaded: LoadedJob, changes: Mapping[str, Any]) -> None:
    """A new vramcast.yaml; one that is there is never overwritten."""
    check_new_file(path)
    job = with_overrides(loaded.job, changes)
    edited = edited_file(loaded, changes)
    if edited is not None and edited[0].resolve().parent == path.resolve().parent:
        text = edited[2]
    else:
        text = _whole(job)
    reads = vramcast_yaml.read_text(text, path, Request()).job
    if _absolute(reads).model_dump(exclude={"name"}) != _absolute(job).model_dump(exclude={"name"}):
        raise UsageError(f"--write {path}: this job cannot be said in a vramcast.yaml; use the printed options")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"--write {path}: {error.strerror or error}") from None


def check_new_file(path: Path) -> None:
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"--write {path}: it is written as YAML; give it a name that ends with .yaml")
    if path.exists():
        raise UsageError(f"--write {path}: it is there already, and nothing is overwritten; choose another name")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--write {path}: there is no folder {path.resolve().parent}")


def _whole(job: Job) -> str:
    data = _absolute(job).model_dump(mode="json", exclude_unset=True)
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return text


def _absolute(job: Job) -> Job:
    """Folders do not depend on where the file lies."""
    parts = {}
    for name, part in job.components.items():
        paths = {key: os.path.abspath(path) for key in _FOLDERS if (path := getattr(part, key)) is not None}
        parts[name] = part.model_copy(update=paths)
    return job.model_copy(update={"components": parts})
