"""`--write`: a suggestion as new files, in the user's own format or as a vramcast.yaml. Nothing is overwritten."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.outputs import publish, write_here
from vramcast.features.advise.config import own_command
from vramcast.features.advise.layout_configs import layout_config
from vramcast.jobs.code_places import code_in
from vramcast.jobs.editing.rewrite import rewrite
from vramcast.jobs.editing.sources import sources_of
from vramcast.jobs.equality import same_run
from vramcast.jobs.load import FLAGS, LoadedJob, load_job, with_overrides
from vramcast.jobs.readers import vramcast_yaml
from vramcast.jobs.readers.command_line import parse_command, split_environment
from vramcast.jobs.schema import Job
from vramcast.jobs.text_files import read_text

_YAML = (".yaml", ".yml")
_FOLDERS = ("transformers", "diffusers")
_SAID_BY_LAUNCHER = ("checkpointing", "allocator_conf", "precision", "accumulation", "sizes.batch")
"""What a config of accelerate or torchtitan says beside the layout; accelerate's batch is the script's own."""


def check_new_file(path: Path, loaded: LoadedJob) -> None:
    """Find out before the work starts whether the file can be written."""
    if os.path.exists(path):
        raise UsageError(f"--write {path}: it is there already, and nothing is overwritten; choose another name")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--write {path}: there is no folder {path.resolve().parent}")
    suffix = path.suffix.lower()
    if suffix in _YAML or suffix in _own_suffixes(loaded) or _is_for_launcher(path, loaded):
        return
    files = _files(loaded)
    if len(files) > 1:
        names = " and ".join(file.name for file in files)
        raise UsageError(
            f"--write {path}: {names} belong together: name a new folder, without a suffix, or a vramcast.yaml "
            "(a name that ends with .yaml)"
        )
    if files:
        raise UsageError(
            f"--write {path}: it is written like {files[0].name}: give it a name that ends with {files[0].suffix}, or "
            "with .yaml for a vramcast.yaml"
        )
    raise UsageError(f"--write {path}: it is written as YAML; give it a name that ends with .yaml")


def write_config(path: Path, loaded: LoadedJob, changes: Mapping[str, Any]) -> None:
    check_new_file(path, loaded)
    if _is_for_launcher(path, loaded):
        _write_for_launcher(path, loaded, changes)
        return
    job = with_overrides(loaded.job, changes)
    files, suffix = _files(loaded), path.suffix.lower()
    as_vramcast = suffix in _YAML and (_is_ours(path) or suffix not in _own_suffixes(loaded))
    if as_vramcast or (_ours_only(loaded) and not _stays_beside(path, loaded, changes)):
        _write({path: whole_yaml(job)}, path)
        _verify(path, job, LoadedJob(job=job, where=str(path)), {})
        return
    rewritten = rewrite(loaded, changes)
    if loaded.where == FLAGS and not files:
        _write({path: f"#!/bin/bash\n{own_command(rewritten)}\n"}, path)
        request = dataclasses.replace(loaded.request, arguments=())
        _verify(path, job, dataclasses.replace(loaded, where=str(path), request=request), rewritten.beside)
        return
    texts = {file: rewritten.texts.get(file) or read_text(file) for file in files}
    if len(files) == 1:
        places = {files[0]: path}
    else:
        path.mkdir()
        places = {file: path / file.name for file in files}
    _write({places[file]: text for file, text in texts.items()}, path)
    parts = tuple(str(places.get(Path(part), part)) for part in loaded.request.parts)
    request = dataclasses.replace(loaded.request, parts=parts, arguments=rewritten.arguments)
    where = str(places.get(_file_of(loaded), loaded.where))
    _verify(path, job, dataclasses.replace(loaded, where=where, request=request), rewritten.beside)


def _is_for_launcher(path: Path, loaded: LoadedJob) -> bool:
    """A model folder on several cards may be written as accelerate.yaml, or for torchtitan."""
    if loaded.job.gpus.count == 1 or _files(loaded):
        return False
    suffix = path.suffix.lower()
    return suffix == ".toml" or (suffix in _YAML and path.name.lower().startswith("accelerate"))


def _write_for_launcher(path: Path, loaded: LoadedJob, changes: Mapping[str, Any]) -> None:
    beyond = [key for key in changes if not key.startswith("gpus.") and key not in _SAID_BY_LAUNCHER]
    if changes.get("checkpointing", "all") not in ("all", "none"):
        beyond.append("checkpointing")
    if beyond:
        raise UsageError(f"--write {path}: it cannot say {', '.join(beyond)}; write a vramcast.yaml")
    _write({path: layout_config(loaded, changes, path)}, path)
    publish(path)


def _files(loaded: LoadedJob) -> list[Path]:
    """The files that the job was read from and that can be rewritten."""
    try:
        return [source.path for source in sources_of(loaded) if source.path is not None]
    except VramcastError:
        return []


def _own_suffixes(loaded: LoadedJob) -> tuple[str, ...]:
    files = _files(loaded)
    if len(files) > 1:
        return ("",)
    if files:
        return _YAML if files[0].suffix.lower() in _YAML else (files[0].suffix.lower(),)
    words = split_environment(list(loaded.request.arguments))[1]
    return (".sh",) if loaded.where == FLAGS and parse_command(words, FLAGS).script else ()


def _file_of(loaded: LoadedJob) -> Path:
    path = Path(loaded.where)
    return vramcast_yaml.file_of(path) if vramcast_yaml.recognises(path) else path


def _is_ours(path: Path) -> bool:
    """Whether the file's name alone makes it a vramcast.yaml."""
    return path.name.startswith("vramcast") or path.stem.endswith(".vramcast")


def _ours_only(loaded: LoadedJob) -> bool:
    return loaded.recognised_as == vramcast_yaml.NAME and not loaded.request.parts


def _stays_beside(path: Path, loaded: LoadedJob, changes: Mapping[str, Any]) -> bool:
    """Whether the edited text means the same in its new place: paths in a vramcast.yaml are relative to it."""
    same_folder = _file_of(loaded).resolve().parent == path.resolve().parent
    return same_folder and not rewrite(loaded, changes).beside


def _write(texts: Mapping[Path, str], asked: Path) -> None:
    try:
        for path, text in texts.items():
            write_here(str(path), text.encode(), False)
    except OSError as error:
        raise UsageError(f"--write {asked}: {error.strerror or error}") from None


def _verify(path: Path, job: Job, written: LoadedJob, beside: Mapping[str, Any]) -> None:
    """Read it back from its place; remove it if it describes another job."""
    try:
        where = None if written.where == FLAGS else written.where
        written.request.gate.typed(*code_in(_absolute(job)))
        read_back = load_job(where, beside, written.request).job
        if same_run(_absolute(read_back), _absolute(job)):
            publish(path)
            return
        why = "read from there it is another job, since paths in it are relative: write it beside your own file"
    except VramcastError as error:
        why = str(error)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    raise UsageError(f"--write {path}: {why}, or use what is printed")


def whole_yaml(job: Job) -> str:
    """The job as a vramcast.yaml that can lie anywhere."""
    data = _absolute(job).model_dump(mode="json", exclude_unset=True)
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return text


def _absolute(job: Job) -> Job:
    """Folders do not depend on where the file lies."""
    parts = {}
    for name, part in job.components.items():
        paths = {key: os.path.abspath(path) for key in _FOLDERS if (path := getattr(part, key)) is not None}
        if part.factory is not None and part.factory.partition(":")[0].endswith(".py"):
            paths["factory"] = os.path.abspath(part.factory)
        parts[name] = part.model_copy(update=paths)
    return job.model_copy(update={"components": parts})
