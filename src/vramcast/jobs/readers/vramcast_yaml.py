"""vramcast.yaml: the schema of a job as it is. Folders in it are relative to the file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.input_files import open_input
from vramcast.jobs.readers import Edits, Part, Reading, Request
from vramcast.jobs.readers.code import resolve_factory
from vramcast.jobs.readers.keys import Keys
from vramcast.jobs.schema import SOURCES, Job
from vramcast.jobs.text_files import text_instead
from vramcast.jobs.validation import LineOf, check_part, make_job
from vramcast.jobs.yaml_file import Key, read_yaml

NAME = "vramcast.yaml"
FILE_NAME = "vramcast.yaml"

_SUFFIXES = (".yaml", ".yml")
_OUR_KEYS = re.compile(r"^(components|step|script|inputs)\s*:", re.MULTILINE)
_LOOKED_AT_BYTES = 100_000
_FOLDERS = ("transformers", "diffusers")


def recognises(path: Path) -> bool:
    try:
        if os.path.isdir(path):
            return os.path.isfile(path / FILE_NAME)
        if path.suffix.lower() not in _SUFFIXES or not os.path.isfile(path):
            return False
        if path.name.startswith("vramcast") or path.name.endswith((".vramcast.yaml", ".vramcast.yml")):
            return True
        instead = text_instead(path)
        if instead is not None:
            return _OUR_KEYS.search(instead) is not None
        with open_input(path) as file:
            head = file.read(_LOOKED_AT_BYTES).decode("utf-8", errors="replace")
    except (OSError, VramcastError):
        return False
    return _OUR_KEYS.search(head) is not None


def read(path: Path, request: Request) -> Reading:
    file = file_of(path)
    return _reading(*read_yaml(file), file, request)


def file_of(path: Path) -> Path:
    return path / FILE_NAME if os.path.isdir(path) else path


def _reading(data: Any, lines: dict[Key, int], file: Path, request: Request) -> Reading:
    if isinstance(data, dict):
        data = {"name": file.resolve().parent.name if file.name == FILE_NAME else file.stem, **data}
        _resolve_paths(data, file.parent, request)
    return Reading(job=make_job(data, str(file), _line_of(lines)), recognised_as=NAME, folders=(file.parent,))


def read_part(path: Path, request: Request) -> Part:
    """Beside another config, a vramcast.yaml may say no more than the inputs."""
    file = file_of(path)
    data, lines = read_yaml(file)
    if not isinstance(data, dict):
        raise UsageError(f"{file}: a mapping of keys to values is needed")
    if "components" in data:
        data = {"name": file.resolve().parent.name if file.name == FILE_NAME else file.stem, **data}
    _resolve_paths(data, file.parent, request)
    check_part(data, str(file), _line_of(lines))
    return Part(data=data, recognised_as=NAME, where=str(file), folders=(file.parent,))


def _line_of(lines: dict[Key, int]) -> LineOf:
    def line_of(key: Key) -> int | None:
        while key not in lines and key:
            key = key[:-1]
        return lines.get(key)

    return line_of


def _resolve_paths(data: dict[str, Any], folder: Path, request: Request) -> None:
    components = data.get("components")
    parts = list(components.values()) if isinstance(components, dict) else []
    for part in parts:
        if isinstance(part, dict):
            for source in SOURCES:
                value = part.get(source)
                if source in _FOLDERS and isinstance(value, str):
                    part[source] = os.path.join(folder, os.path.expanduser(value))
            if request.trust_remote_code:
                part.setdefault("trust_remote_code", True)
    _resolve_script(data, folder)
    step = data.get("step")
    parts += [step] if isinstance(step, dict) else []
    for section in ("loss", "optimizer"):
        value = data.get(section)
        parts += value if isinstance(value, list) else [value]
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("factory"), str):
            part["factory"] = resolve_factory(part["factory"], folder)


def _resolve_script(data: dict[str, Any], folder: Path) -> None:
    script = data.get("script")
    if isinstance(script, str):
        data["script"] = os.path.join(folder, os.path.expanduser(script))
    elif isinstance(script, dict) and isinstance(script.get("path"), str):
        script["path"] = os.path.join(folder, os.path.expanduser(script["path"]))


def section_edits(keys: Keys, changes: Mapping[str, Any], job: Job) -> Edits:
    """The fields themselves (dotted key → value). A short form (`gpus: 4`) gives way to the whole section."""
    edits: Edits = {}
    for key, value in changes.items():
        path = tuple(key.split("."))
        top = keys.take(path[0])
        if key == "sizes.batch" and keys.says(("gpus", "global_batch")):
            edits[("gpus", "global_batch")] = value * job.gpus.count
        elif len(path) > 1 and top is not None and not isinstance(top, Mapping):
            section = job.model_dump(mode="json", exclude_unset=True)[path[0]]
            edits[(path[0],)] = section[0] if isinstance(section, list) and len(section) == 1 else section
        else:
            edits[path] = value
    return edits
