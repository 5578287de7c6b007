"""Low-rank adapters by peft, put in as people do for each library."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.building.libraries import library
from vramcast.jobs.patterns import matching_names
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Lora
from vramcast.jobs.training.dtypes import DTYPES

_DIFFUSION_TARGETS = ["to_k", "to_q", "to_v", "to_out.0"]
"""What diffusers' LoRA training scripts take."""


_ALL_LINEAR = "all-linear"
_QUANTIZED = re.compile(r"\.parametrizations\.(\w+)\.original$")


def add_adapters(key: str, module: Any, lora: Lora | None, family: str) -> nn.Module:
    peft = library("peft", f"{key}: mode: lora")
    lora = lora or Lora()
    targets: Any = lora.targets
    if targets is None and family == "diffusers":
        targets = _DIFFUSION_TARGETS
    if isinstance(targets, str) and targets != _ALL_LINEAR:
        targets = _exactly(matching_names(targets, [name for name, _ in module.named_modules()], f"{key}.lora.targets"))
    _check_parameters(key, lora.parameters, [name for name, _ in module.named_parameters()])
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha or 2 * lora.rank,
        lora_dropout=lora.dropout,
        use_dora=lora.dora,
        target_modules=targets,
        modules_to_save=lora.trained_modules or None,
        **({"target_parameters": lora.parameters} if lora.parameters else {}),  # not known to peft before 0.17
    )
    try:
        if family == "diffusers" and hasattr(module, "add_adapter"):
            module.requires_grad_(False)
            module.add_adapter(config)
            adapted: nn.Module = module
        else:
            adapted = peft.get_peft_model(module, config)
    except (ValueError, TypeError) as error:
        names = sorted(
            {name.rpartition(".")[2] for name, child in module.named_modules() if isinstance(child, nn.Linear)}
        )
        wrong = next((one for one in targets if one not in names), "") if isinstance(targets, list) else ""
        guess = nearest(wrong, names) if wrong else ""
        guess = guess if guess.startswith(";") else ""
        some = ", ".join(names[:12])
        raise UsageError(
            f"{key}.lora.targets: {str(error).splitlines()[0]} Linear layers here are called {some}{guess}"
        ) from None
    if not lora.cast_inputs:
        for layer in adapted.modules():
            if isinstance(layer, peft.tuners.lora.LoraLayer):
                layer.cast_input_dtype_enabled = False
    if lora.dtype is not None:
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(DTYPES[lora.dtype])
    return adapted


def _check_parameters(key: str, wanted: list[str], names: list[str]) -> None:
    """peft leaves out in silence what it does not find; of quantized parameters it knows whole names alone."""
    quantized = [_QUANTIZED.sub(r".\1", name) for name in names if _QUANTIZED.search(name)]
    for name in wanted:
        if any(known.endswith(f".{name}") for known in quantized):
            raise CannotPredict(
                f"{key}.lora.parameters: {name}: adapters on experts that are quantized are not modelled; "
                f"--set {key}.quantize_experts=false predicts without"
            )
        if not any(known == name or known.endswith(f".{name}") for known in [*names, *quantized]):
            last = sorted({".".join(known.rsplit(".", 3)[-3:]) for known in names})
            raise UsageError(f"{key}.lora.parameters: there is no parameter {name!r}{nearest(name, last)}")


def _exactly(names: list[str]) -> str:
    """A regular expression for these and no other: peft would take a list of names for their ends."""
    return "|".join(re.escape(name) for name in names) or "(?!)"
