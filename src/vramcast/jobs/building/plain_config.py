"""A model's config.json as data: what it says about the network stays; what it says about code, files and kernels to
load goes, or is an error where something else would be predicted without it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from vramcast.base.errors import UsageError
from vramcast.jobs.building.allowed import ATTENTION, EXPERTS, check_arguments, check_kernels, without_weights
from vramcast.jobs.building.timm import known_arguments
from vramcast.jobs.code_places import is_plain

_KERNELS = {
    "attn_implementation": ATTENTION,
    "_attn_implementation": ATTENTION,
    "experts_implementation": EXPERTS,
    "_experts_implementation": EXPERTS,
}
_CODE = ("auto_map", "custom_pipelines", "custom_generate", "name_or_path", "use_pretrained_backbone")
_PRIVATE_DATA = ("_out_features", "_out_indices", "_class_name", "_num_labels")
"""Names with an underscore that say something of the network."""
_TIMM_NAMES = ("backbone", "architecture")
_TIMM_ARGUMENTS = ("model_args", "backbone_kwargs")
_SETTABLE = ("model_type", "num_labels", "output_attentions", "use_return_dict", "rope_scaling", "per_layer_config")
_DTYPES = ("dtype", "torch_dtype")
_LABELS = ("id2label", "label2id")


def plain_config(raw: dict[str, Any], base: type, where: str) -> dict[str, Any]:
    """`raw` without keys that are no data. `base`: the class of all configs, whose own names are not for a file to
    set: `attribute_map`, say, by which one key can stand for another."""
    fields = {field.name for field in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
    own = {name for kind in base.__mro__ for name in (*vars(kind), *vars(kind).get("__annotations__", ()))} - fields
    config: dict[str, Any] = _plain(raw, own - set(_SETTABLE), where, "")
    return config


def _plain(raw: Any, own: set[str], where: str, key: str) -> Any:
    if isinstance(raw, list):
        return [_plain(item, own, where, key) for item in raw]
    if not isinstance(raw, dict):
        return raw
    config: dict[str, Any] = {}
    for name, value in raw.items():
        place = f"{key}.{name}" if key else str(name)
        if name in _KERNELS:
            check_kernels(f"{where}: {place}", value, _KERNELS[name])
            config[name] = value
        elif name in _DTYPES:
            if isinstance(value, str) and isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype):
                config[name] = value
        elif name in _CODE or name in own or _is_private(name, value):
            continue
        elif name in _TIMM_ARGUMENTS and isinstance(value, dict):
            config[name] = _timm_arguments(raw, value, f"{where}: {place}")
        elif name in _LABELS:
            config[name] = value
        else:
            if name in _TIMM_NAMES and isinstance(value, str) and not is_plain(value):
                raise UsageError(f"{where}: {place}: {value!r:.80} would be fetched: name a model of timm, or leave it")
            config[name] = _plain(value, own, where, place)
    return config


def _is_private(name: Any, value: Any) -> bool:
    return isinstance(name, str) and name.startswith("_") and name not in _PRIVATE_DATA and not _is_number(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) or (isinstance(value, list) and all(map(_is_number, value)))


def _timm_arguments(raw: dict[str, Any], arguments: dict[str, Any], key: str) -> dict[str, Any]:
    name = next((raw[field] for field in _TIMM_NAMES if isinstance(raw.get(field), str)), "")
    kept = without_weights(key, arguments)
    check_arguments(key, kept, known_arguments(name), name or "it")
    return kept
