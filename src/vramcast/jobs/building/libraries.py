"""Model libraries are not required: where one is missing, the message says what to install and what for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from types import FunctionType
from typing import Any

import torch

from vramcast.base.errors import UsageError
from vramcast.base.factories import without_collections
from vramcast.card.device.hidden_output import libraries_quiet

_SETTINGS = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "DIFFUSERS_VERBOSITY": "error",
    "YOLO_OFFLINE": "true", "YOLO_VERBOSE": "false", "YOLO_AUTOINSTALL": "false",
}  # fmt: skip
"""Read by the libraries when they are imported: no network, and no warnings that make no sense on a virtual GPU."""


def library(name: str, wanted_for: object) -> Any:
    """Import `name`; nothing is ever fetched from the network by it."""
    for variable, value in _SETTINGS.items():
        os.environ.setdefault(variable, value)
    try:
        with loading():
            return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != name:
            raise UsageError(f"{wanted_for}: {name} cannot be imported here: {error}") from None
        raise UsageError(f"{wanted_for} needs {name}, which is not installed: pip install {name}") from None


@contextmanager
def loading() -> Iterator[None]:
    """Around what loads a library's modules, which asking it for a class may do: the constants that a module makes then
    stay off the card, also where a model is being built there."""
    with torch.device("cpu"), without_collections(), libraries_quiet(), _compiling_when_called():
        yield


@contextmanager
def _compiling_when_called() -> Iterator[None]:
    """Functions that a library decorates with torch.compile are compiled when they are first called, not when it is
    imported: loading the compiler takes longer than loading bitsandbytes."""
    compile_now = torch.compile

    def compile_later(model: Any = None, **settings: Any) -> Any:
        if model is None:
            return partial(compile_later, **settings)
        if not isinstance(model, FunctionType):
            return compile_now(model, **settings)
        made = cache(lambda: compile_now(model, **settings))

        @wraps(model)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            return made()(*args, **kwargs)

        return compiled

    torch.compile = compile_later
    try:
        yield
    finally:
        torch.compile = compile_now
