"""Linear layers with 8-bit or 4-bit weights by bitsandbytes, as transformers puts them in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vramcast.base.errors import UsageError
from vramcast.jobs.building.libraries import library
from vramcast.jobs.stored_quantization import Quantization

_KEPT = ("lm_head", "classifier", "score", "proj_out")
"""Heads stay as they are, as transformers leaves them."""

_FUSED_DIMENSIONS = 3


def quantize(key: str, module: nn.Module, wanted: Quantization, computed_in: torch.dtype) -> None:
    """Replace the linear layers in place; their weights shrink when they are moved to the card. `computed_in`: what
    4-bit weights are turned into for a product."""
    bnb = library("bitsandbytes", f"{key}.quantization: {wanted.kind}")
    kept = wanted.kept or _KEPT
    layers = [
        (parent, name, child)
        for path, parent in module.named_modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and not _is_kept(f"{path}.{name}".lstrip("."), kept)
    ]
    if not layers:
        raise UsageError(f"{key}.quantization: there is no linear layer in {type(module).__name__}")
    for parent, name, child in layers:
        setattr(parent, name, _layer(bnb, child, wanted, computed_in))


def quantize_experts(key: str, module: nn.Module, place: str) -> None:
    """Replace the parameters of fused experts; each is whole on the card until it is quantized there."""
    library("bitsandbytes", f"{key}.quantize_experts")
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    for owner, name in _fused_experts(module):
        parameter = getattr(owner, name)
        parameter.data = parameter.data.to(place)
        parameter.requires_grad_(False)
        del parameter
        replace_parameter_4bit(owner, name, compress_statistics=True)
        if place == "cuda":
            torch.cuda.empty_cache()


def whole_experts_bytes(module: nn.Module) -> int:
    """Of fused experts that are not quantized."""
    parameters = [getattr(owner, name) for owner, name in _fused_experts(module)]
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _fused_experts(module: nn.Module) -> list[tuple[nn.Module, str]]:
    return [
        (owner, name)
        for path, owner in module.named_modules()
        for name, parameter in owner.named_parameters(recurse=False)
        if parameter.dim() >= _FUSED_DIMENSIONS and "expert" in f"{path}.{name}".lower() and "lora_" not in name
    ]


def _is_kept(path: str, kept: tuple[str, ...]) -> bool:
    """Whether its name, or that of a module around it, is listed, as transformers compares them."""
    return any(path == name or path.endswith(f".{name}") or f".{name}." in f".{path}" for name in kept)


def _layer(bnb: Any, old: nn.Linear, wanted: Quantization, computed_in: torch.dtype) -> nn.Module:
    arguments = {"bias": old.bias is not None, "device": "meta"}
    if wanted.kind == "nf4":
        new = bnb.nn.Linear4bit(
            old.in_features, old.out_features, compute_dtype=computed_in, quant_type="nf4",
            compress_statistics=wanted.nested, **arguments,
        )  # fmt: skip
        settings = {"quant_type": "nf4", "compress_statistics": new.weight.compress_statistics, "module": new}
        new.weight = bnb.nn.Params4bit(old.weight.data, requires_grad=False, **settings)
    else:
        new = bnb.nn.Linear8bitLt(old.in_features, old.out_features, has_fp16_weights=False, **arguments)
        new.weight = bnb.nn.Int8Params(old.weight.data, requires_grad=False, has_fp16_weights=False)
    new.bias = old.bias
    return new  # type: ignore[no-any-return]


def count_of(parameter: nn.Parameter) -> int:
    """Weights in a parameter: 4-bit ones lie two to a byte."""
    return parameter.numel() * (2 if parameter.dtype is torch.uint8 else 1)
