"""Models for which peft itself knows which layers get adapters, read from its source: importing it takes seconds."""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

_TABLE = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"


@functools.cache
def models_with_usual_targets() -> frozenset[str]:
    """By model_type; empty where this version of peft keeps its table elsewhere."""
    spec = importlib.util.find_spec("peft")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    try:
        tree = ast.parse((Path(folders[0]) / "utils" / "constants.py").read_text(encoding="utf-8"))
    except (IndexError, OSError, SyntaxError, ValueError):
        return frozenset()
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        named = any(isinstance(target, ast.Name) and target.id == _TABLE for target in targets)
        if named and isinstance(getattr(node, "value", None), ast.Dict):
            keys = node.value.keys  # type: ignore[attr-defined]
            return frozenset(str(key.value) for key in keys if isinstance(key, ast.Constant))
    return frozenset()
