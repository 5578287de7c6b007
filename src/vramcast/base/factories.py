"""Find a Python function by name: "package.module:function" or "path/to/file.py:function"."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vramcast.base.access import check_code
from vramcast.base.errors import UsageError, VramcastError

Step = Callable[[], object]
Factory = Callable[..., Any]


def load_attribute(spec: str) -> Any:
    """What `spec` names, whatever it is; the current folder is searched too, as `python -m` does."""
    check_code(f"'{spec}'")
    module_name, _, attribute = spec.rpartition(":")
    if not module_name or not attribute:
        raise UsageError(f"'{spec}' does not name a factory: write module:function or file.py:function")
    named = _import(spec, module_name)
    for part in attribute.split("."):
        if not hasattr(named, part):
            raise UsageError(f"'{spec}': {module_name} has no function {attribute}")
        named = getattr(named, part)
    return named


def load_factory(spec: str) -> Factory:
    """Import the function that `spec` names."""
    factory = load_attribute(spec)
    if not callable(factory):
        raise UsageError(f"'{spec}': {spec.rpartition(':')[0]} has no function {spec.rpartition(':')[2]}")
    return factory  # type: ignore[no-any-return]


def hush_torch() -> None:
    """Silence DDP's warning that it cannot time a virtual card. torch reads this setting once, when it is first
    imported."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def without_cache_folder() -> None:
    """Keep torch from creating the folder for compiled code in a process that only predicts."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TMPDIR") or "/tmp")


@contextmanager
def without_collections(*, lasting: bool = False) -> Iterator[None]:
    """Switch garbage collection off around code that makes many lasting objects, imports above all: searching them
    takes a fifth of the time. Where all that is made is `lasting`, it is not searched afterwards either: like what
    outlives many collections, it is left to the next full one."""
    was_enabled = gc.isenabled()
    if lasting and was_enabled:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if lasting:
                count_anew()
            gc.enable()


@contextmanager
def full_collections_rarely() -> Iterator[None]:
    """While a program runs on the card: to search all that torch and its libraries have made takes a third of a second,
    and what the card notes would have it searched more often than beside a real one."""
    global _programs
    _programs += 1
    is_first = _programs == 1
    before = gc.get_threshold()
    meanwhile = (*before[:2], 100)
    gc.set_threshold(*meanwhile)
    if is_first:
        count_anew()
    try:
        yield
    finally:
        if gc.get_threshold() == meanwhile:  # else the program has chosen its own
            gc.set_threshold(*before)
        if is_first:
            count_anew()


_programs = 0
"""How many this process has run on the card."""


def count_anew() -> None:
    """All objects are old now, and the next full collection is as far away as after one. Where a process runs one
    program after the other, it would never come."""
    gc.freeze()
    gc.unfreeze()


def check_arguments(factory: Factory, arguments: Mapping[str, Any]) -> None:
    """Name the first argument that the factory does not take."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return  # a builtin: it will say so itself
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in arguments:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise UsageError(f"{getattr(factory, '__name__', factory)} takes no argument '{name}' (it takes: {known})")


def _import(spec: str, module_name: str) -> Any:
    here = os.getcwd()
    is_ours = module_name.startswith("vramcast.")  # it needs no folder of the user's on the search path
    if not is_ours and here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        if module_name.endswith(".py"):
            return _module_from_file(Path(module_name))
        return importlib.import_module(module_name)
    except VramcastError:
        raise
    except ImportError as error:
        raise UsageError(f"'{spec}': cannot import {module_name} ({error})") from error
    except Exception as error:
        raise UsageError(f"'{spec}': importing {module_name} failed: {type(error).__name__}: {error}") from error


def _module_from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    levels = _relative_levels(path)
    if levels:
        return _module_in_package(path.resolve(), levels)
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _relative_levels(path: Path) -> int:
    """How many dots its imports begin with at most: `from ..layers import Block` has two."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return 0  # Python says so itself, with the line
    return max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)


def _module_in_package(path: Path, levels: int) -> Any:
    """A file with relative imports is a part of a package: that of the folders with an __init__.py, or as many as its
    imports climb."""
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file() or len(names) <= levels:
        names.insert(0, folder.name)
        folder = folder.parent
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return importlib.import_module(".".join(names))
