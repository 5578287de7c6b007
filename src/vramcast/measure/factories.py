"""Find a workload factory by name: "package.module:function" or "path/to/file.py:function"."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vramcast.errors import UsageError

Step = Callable[[], object]
Factory = Callable[..., Step]


def load_factory(spec: str) -> Factory:
    """Import the function that `spec` names; it builds a job and returns its training step."""
    module_name, _, function_name = spec.rpartition(":")
    if not module_name or not function_name:
        raise UsageError(f"'{spec}' does not name a factory: write module:function or file.py:function")
    try:
        module = _module_from_file(Path(module_name)) if module_name.endswith(".py") else None
        module = module or importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"'{spec}': cannot import {module_name} ({error})") from error
    factory = getattr(module, function_name, None)
    if not callable(factory):
        raise UsageError(f"'{spec}': {module_name} has no function {function_name}")
    return factory  # type: ignore[no-any-return]


def check_arguments(factory: Factory, arguments: Mapping[str, Any]) -> None:
    """Name the first argument that the factory does not take."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in arguments:
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise UsageError(f"{factory.__name__} takes no argument '{name}' (it takes: {known})")


def _module_from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
