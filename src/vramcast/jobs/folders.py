"""Model folders as data: which JSON files they hold and what those say. No weights, no pickle, no code is read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from vramcast.base import input_files
from vramcast.base.access import check_file
from vramcast.base.errors import UsageError

CONFIG = "config.json"
PIPELINE = "model_index.json"
_LARGEST_JSON_BYTES = 10_000_000
_MOST_LAYERS = 2_000
_COUNTS_LAYERS = re.compile(r"layers|n_layer$|depth|num_\w*(block|expert)")
_LARGEST_NUMBER = 2**40
_DEEPEST = 40
_SIZES = frozenset((
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "n_layer", "n_layers", "n_head", "n_heads", "n_embd", "n_inner",
    "n_positions", "n_ctx", "d_model", "d_ff", "d_kv", "num_layers", "num_heads", "num_decoder_layers",
    "num_encoder_layers", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim", "embed_dim", "embedding_size", "image_size",
    "patch_size", "num_channels", "num_mel_bins", "in_channels", "out_channels", "attention_head_dim",
    "cross_attention_dim", "joint_attention_dim", "pooled_projection_dim", "num_single_layers", "block_out_channels",
    "layers_per_block", "sample_size", "max_source_positions", "max_target_positions",
))  # fmt: skip
"""Keys of model configs that are whole numbers above zero, or lists of them, where they are said at all."""
_MAY_BE_ZERO = frozenset((
    "num_decoder_layers", "num_encoder_layers", "encoder_layers", "decoder_layers", "num_single_layers", "image_size",
    "max_position_embeddings",
))  # fmt: skip
_COUNTS = re.compile(
    r"(?:hidden|vocab|intermediate|embedding)_size$|^(?:n|num)_\w*(?:layers?|heads?|channels|experts)$"
)
"""Other keys, of which only negative values are surely wrong."""
_HEADS = {"hidden_size": "num_attention_heads", "n_embd": "n_head"}
_SIZES_OF_HEADS = (
    "head_dim", "kv_channels", "attention_head_size", "attention_head_dim", "d_kv", "d_head", "v_head_dim",
)  # fmt: skip
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
    """Refuse numbers that no model has: a typo would build layers for hours, or none."""
    if isinstance(config, dict):
        if key.count(".") > _DEEPEST:
            raise UsageError(f"{where}: {key[:60]}...: nested too deeply")
        _check_heads(config, where, key)
        for name, value in config.items():
            below = f"{key}.{name}" if key else str(name)
            _check_size(str(name), value, where, below)
            check_sizes(value, where, below)
    elif isinstance(config, list):
        if key.count(".") > _DEEPEST:
            raise UsageError(f"{where}: {key[:60]}...: nested too deeply")
        for i, value in enumerate(config):
            check_sizes(value, where, f"{key}.{i}")
    elif isinstance(config, int):
        most = _MOST_LAYERS if _COUNTS_LAYERS.search(key) else _LARGEST_NUMBER
        if abs(config) > most:
            raise UsageError(f"{where}: {key}: {_short(config)} is far too large: at most {most:,} is possible")


def _check_size(name: str, value: Any, where: str, key: str) -> None:
    """Check what has to be a whole number above zero, or a list of them."""
    if name not in _SIZES and not _COUNTS.search(name):
        return
    for number in value if isinstance(value, list) else (value,):
        if type(number) in (int, float) and number < 0:
            raise UsageError(f"{where}: {key}: {_short(number)} is below zero, which no model can have")
        if name not in _SIZES or number is None or isinstance(number, (list, dict)):
            continue
        if type(number) is not int:
            raise UsageError(f"{where}: {key}: a whole number is needed, not {_short(number)}")
        if number == 0 and name not in _MAY_BE_ZERO:
            raise UsageError(f"{where}: {key}: it is 0, and no model can have none")


def _check_heads(config: dict[str, Any], where: str, key: str) -> None:
    """Attention cuts the width into equal heads, unless the config says their size; heads share keys in groups."""
    place = f"{where}: {key}." if key else f"{where}: "
    if not any(config.get(name) for name in _SIZES_OF_HEADS):
        for width, heads in _HEADS.items():
            if _leaves_rest(config.get(width), config.get(heads)):
                raise UsageError(f"{place}{heads}: {config[width]:,} ({width}) cannot be divided by {config[heads]:,}")
    heads, groups = "num_attention_heads", "num_key_value_heads"
    if _leaves_rest(config.get(heads), config.get(groups)):
        raise UsageError(f"{place}{groups}: {config[heads]:,} ({heads}) cannot be divided by {config[groups]:,}")


def _leaves_rest(whole: Any, parts: Any) -> bool:
    return type(whole) is int and type(parts) is int and whole > 0 and parts > 0 and whole % parts != 0


def _short(value: Any) -> str:
    text = f"{value:,}" if type(value) is int and abs(value) < 10**20 else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`config` with `changes` put over it, key by key at every depth."""
    result = dict(config)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
