"""What the scripts read, generated on the spot: the same on every machine, and small.

A recipe is a function of a folder and of its parameters; `zoo.toml` names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_MODULES = ("files", "images", "sequences", "tables", "models")


def recipes() -> dict[str, Callable[..., None]]:
    """Every recipe by its name."""
    by_name: dict[str, Callable[..., None]] = {}
    for module_name in _MODULES:
        module = importlib.import_module(f"{__name__}.{module_name}")
        by_name |= {function.__name__: function for function in module.RECIPES}
    return by_name


def generate(recipe: str, folder: Path, parameters: Mapping[str, Any]) -> None:
    """Make what `recipe` describes in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    recipes()[recipe](folder, **parameters)
