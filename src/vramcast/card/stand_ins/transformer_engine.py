"""TransformerEngine's Python part loads its compiled parts when it is imported: it finds the stand-in instead."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

from vramcast.card.stand_ins.imports import when_imported

_MODULE = "transformer_engine.common"
_WITHOUT_LIBRARIES = "NVTE_PROJECT_BUILDING"
"""With this variable it can be imported where no library is built."""

_restore: list[Callable[[], None]] = []


def install() -> None:
    _restore.append(when_imported(_MODULE, _change, around=_without_libraries))


def remove() -> None:
    while _restore:
        _restore.pop()()


def _without_libraries(run: Callable[[Any], None], module: Any) -> None:
    before = os.environ.get(_WITHOUT_LIBRARIES)
    os.environ[_WITHOUT_LIBRARIES] = "1"
    try:
        run(module)
    finally:
        if before is None:
            del os.environ[_WITHOUT_LIBRARIES]
        else:
            os.environ[_WITHOUT_LIBRARIES] = before


def _change(module: Any) -> None:
    original = module.load_framework_extension
    module.load_framework_extension = _load
    _restore.append(functools.partial(setattr, module, "load_framework_extension", original))


def _load(framework: str) -> None:
    if framework != "torch":
        raise FileNotFoundError(f"Could not find shared object file for Transformer Engine {framework} lib.")
    importlib.import_module("transformer_engine_torch")
