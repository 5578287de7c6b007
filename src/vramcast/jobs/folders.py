"""Model folders as data: which JSON files they hold and what those say. No weights, no pickle, no code is read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from vramcast import input_files
from vramcast.access import check_file
from vramcast.errors import UsageError

CONFIG = "config.json"
PIPELINE = "model_index.json"
_LARGEST_JSON_BYTES = 10_000_000
_MOST_LAYERS = 2_000
_COUNTS_LAYERS = re.compile(r"layers|n_layer$|depth|num_\w*(block|expert)")
_LARGEST_NUMBER = 2**40
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; UsageError names the file and what is wrong with it."""
    check_file(path)
    document = input_files.parse_json(input_files.read_text(path, _LARGEST_JSON_BYTES), str(path))
    if not isinstance(document, dict):
        raise UsageError(f"{path}: an object with keys is needed")
    return document


def folder_kind(folder: Path) -> str | None:
    """pipeline, diffusers, transformers, or None for a folder without a model's config."""
    if os.path.isfile(folder / PIPELINE):
        return "pipeline"
    if not os.path.isfile(folder / CONFIG):
        return None
    config = read_json(folder / CONFIG)
    if "_class_name" in config:
        return "diffusers"
    return "transformers"


def pipeline_parts(folder: Path) -> dict[str, tuple[str, str]]:
    """The networks of a pipeline: subfolder → (library, class); tokenizers and schedulers have no config.json."""
    index = read_json(folder / PIPELINE)
    parts: dict[str, tuple[str, str]] = {}
    for name, value in index.items():
        if name.startswith("_") or not isinstance(value, list) or len(value) != 2:
            continue
        library, class_name = value
        if isinstance(library, str) and isinstance(class_name, str) and os.path.isfile(folder / name / CONFIG):
            parts[name] = (library, class_name)
    return parts


def why_no_model(folder: Path) -> str:
    """What to tell somebody whose folder has no config: a folder of pickles is the usual case."""
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} has weights ({pickles[0]}) but no {CONFIG}. A pickle is never opened: it can run any code. Put "
            f"the model's {CONFIG} beside it, or name a Python function that builds it (vramcast predict file.py:job)"
        )
    if any(folder.glob("*.safetensors")):
        return f"{folder} has weights but no {CONFIG}, which says what they are of: put it beside them"
    return f"{folder} has neither {CONFIG} (transformers, one diffusers model) nor {PIPELINE} (a diffusers pipeline)"


def check_sizes(config: Any, where: str, key: str = "") -> None:
    """Refuse numbers that no model has: a slip of the pen would build layers for hours."""
    if isinstance(config, dict):
        for name, value in config.items():
            check_sizes(value, where, f"{key}.{name}" if key else str(name))
    elif isinstance(config, list):
        for i, value in enumerate(config):
            check_sizes(value, where, f"{key}.{i}")
    elif isinstance(config, int):
        most = _MOST_LAYERS if _COUNTS_LAYERS.search(key) else _LARGEST_NUMBER
        if abs(config) > most:
            raise UsageError(f"{where}: {key}: {config:,} is far too large: at most {most:,} is possible")


def merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`config` with `changes` put over it, key by key at every depth."""
    result = dict(config)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
