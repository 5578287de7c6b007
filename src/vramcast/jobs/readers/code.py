"""Python code that a config names: where it is found, and what of the config it takes. Whatever a file names passes the
gate of base/access.py before it is imported."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast import overlay
from vramcast.base.access import CodeGate, CodePlace, check_code
from vramcast.base.errors import VramcastError
from vramcast.base.factories import hush_torch, load_factory
from vramcast.jobs.text_files import read_text
from vramcast.trace import Note

_MOST_FILES = 200
_WEIGHT_FILES = (".pth", ".pth.tar", ".pt", ".ckpt", ".safetensors", ".bin", ".pkl", ".npz")


def resolve_factory(name: str, folder: Path) -> str:
    """ "file.py:function" lies beside the config; "package.module:function" may too, see `search_in`."""
    return os.path.join(folder, name) if name.partition(":")[0].endswith(".py") else name


def search_in(*folders: Path) -> None:
    """Modules may be imported from there from now on. Only for code that has passed the gate: what lies in a folder
    could be imported in place of a library."""
    for folder in folders:
        check_code(str(folder))
        place = str(folder.resolve())
        if place not in sys.path:
            sys.path.insert(0, place)


def typed_factory(name: str, folder: Path, gate: CodeGate) -> str:
    """Like resolve_factory, for what was typed: a file may also lie in the current folder."""
    file = name.rpartition(":")[0]
    factory = name if file.endswith(".py") and os.path.exists(file) else resolve_factory(name, folder)
    if not file.endswith(".py") and not _can_be_imported(file.partition(".")[0]):
        search_in(folder)
    gate.typed(factory_place("--model", factory))
    return factory


def _can_be_imported(package: str) -> bool:
    """Whether it can be imported without the config's folder, which may hold something else of that name."""
    if is_there(package, Path()):
        return True
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def factory_place(key: str, factory: str, where: str = "") -> CodePlace:
    return CodePlace(key, f"factory: {factory}", where)


def is_there(module: str, folder: Path) -> bool:
    """Whether `module` lies in `folder`, without running it."""
    names = module.split(".")
    if not all(names):
        return False
    path = folder.joinpath(*names)
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def class_beside(name: str, folder: Path) -> str | None:
    """ "file.py:Class" of a file in the config's folder, or in `models` there, that defines the class; none is run."""
    wanted = re.compile(rf"^class {re.escape(name)}\b", re.MULTILINE)
    for place in (folder, folder / "models", folder.parent / "models"):
        for file in sorted(place.glob("*.py"))[:_MOST_FILES]:
            with contextlib.suppress(VramcastError, OSError, UnicodeDecodeError):
                if wanted.search(read_text(file)):
                    return f"{file}:{name}"
    return None


def taken_by(factory: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The keys of a config that the function takes as arguments, and the others."""
    parameters = _parameters(factory)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given), []
    taken = {name: value for name, value in given.items() if name in parameters}
    return taken, [name for name in given if name not in taken]


def without_weight_files(factory: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Note]]:
    """Arguments without those that name a file of weights and may be left out. Loading weights changes no size, and
    the file may be missing, or be fetched from the network when it is."""
    parameters = _parameters(factory)
    left = [
        name
        for name, value in given.items()
        if isinstance(value, str)
        and value.lower().endswith(_WEIGHT_FILES)
        and name in parameters
        and parameters[name].default in (None, "", False)
    ]
    kept = {name: value for name, value in given.items() if name not in left}
    text = f"{', '.join(left)}: {factory} is built without loading these weights; they take the same memory"
    return kept, [Note("weights", text)] if left else []


def first_parameter(factory: str) -> str | None:
    """The name of the first argument that the function takes."""
    return next(iter(_parameters(factory)), None)


def _parameters(factory: str) -> Mapping[str, inspect.Parameter]:
    hush_torch()
    with overlay.protected():
        function = load_factory(factory)
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def code_note(factory: str, why: str) -> Note:
    return Note("Python code", f"{factory} is imported and called, because {why}")
