"""What a model folder says of weights that are stored quantized: `quantization_config` in its config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.folders import CONFIG, merged, read_json
from vramcast.jobs.schema import Component

_KEYS = ("quantization_config", "compression_config")


@dataclass(frozen=True, slots=True)
class Quantization:
    kind: str
    """nf4 or int8, as a component says it."""
    kept: tuple[str, ...] = ()
    """Parts of names of modules that stay as they are, where the config lists them."""
    nested: bool = True
    """Whether the scales of 4-bit weights are quantized too."""


def quantization_of(key: str, component: Component, task: str) -> Quantization | None:
    """What the component asks for, or what its folder holds; `key` is named where that cannot be."""
    asked = None if component.quantization == "none" else Quantization(component.quantization)
    stored = _stored(key, component)
    if stored is None:
        return asked
    if asked is not None and asked.kind != stored.kind:
        raise UsageError(
            f"{key}.quantization: {asked.kind}, but the folder holds {stored.kind} weights (quantization_config in its "
            f"{CONFIG}): leave it out"
        )
    if component.mode == "trained" and task == "training":
        raise UsageError(
            f"{key}: its {CONFIG} says that the weights are {stored.kind} (quantization_config), which cannot be "
            f"trained: --set {key}.mode=lora, or frozen"
        )
    return stored


def _stored(key: str, component: Component) -> Quantization | None:
    root = component.transformers or component.diffusers
    if root is None:
        return None
    path = Path(root) / (component.subfolder or "") / CONFIG
    config = merged(read_json(path), component.config)
    name = next((name for name in _KEYS if config.get(name) is not None), None)
    if name is None:
        nested = next((part for part, value in config.items() if _is_quantized(value)), None)
        if nested is None:
            return None
        raise CannotPredict(
            _not_modelled(f"{path}: {nested}.{_KEYS[0]}", "quantized weights of a part of the model", key)
        )
    settings = config[name]
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: {name}: keys and values are needed")
    method = settings.get("quant_method") or ("bitsandbytes" if _bits(settings) else "an unnamed method")
    if not isinstance(method, str) or not method.startswith("bitsandbytes") or not _bits(settings):
        raise CannotPredict(_not_modelled(f"{path}: {name}", f"weights quantized by {str(method)[:40]}", key))
    kept = settings.get("llm_int8_skip_modules") or ()
    if not isinstance(kept, list | tuple) or not all(isinstance(name, str) for name in kept):
        raise UsageError(f"{path}: {name}.llm_int8_skip_modules: a list of names is needed")
    is_nested = settings.get("bnb_4bit_use_double_quant")
    return Quantization(_bits(settings), tuple(kept), nested=bool(is_nested))


def _bits(settings: dict[str, Any]) -> str:
    if settings.get("load_in_4bit") or settings.get("_load_in_4bit"):
        return "nf4"  # fp4 takes the same
    return "int8" if settings.get("load_in_8bit") or settings.get("_load_in_8bit") else ""


def _is_quantized(value: Any) -> bool:
    return isinstance(value, dict) and any(value.get(name) is not None for name in _KEYS)


def _not_modelled(place: str, what: str, key: str) -> str:
    return (
        f"{place}: {what} are not modelled, only bitsandbytes' 4-bit and 8-bit ones; whole weights are predicted with "
        f"--set {key}.config='{{{_KEYS[0]}: null}}'"
    )
