"""Optimizers by name, with the parameters that a job gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.base.factories import load_factory
from vramcast.jobs.building.libraries import library
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.patterns import matches
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Offload, Optimizer
from vramcast.jobs.training.host_optimizer import on_host

_LEARNING_RATE = 1e-4
_NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
"""Names that Hugging Face's Trainer leaves out of weight decay."""

_TORCH = {
    name.lower(): getattr(torch.optim, name)
    for name in dir(torch.optim)
    if isinstance(getattr(torch.optim, name), type) and name != "Optimizer"
}
_BITSANDBYTES = {
    "adam8bit": "Adam8bit",
    "adamw8bit": "AdamW8bit",
    "lion8bit": "Lion8bit",
    "sgd8bit": "SGD8bit",
    "rmsprop8bit": "RMSprop8bit",
    "adagrad8bit": "Adagrad8bit",
    "ademamix8bit": "AdEMAMix8bit",
    "lion": "Lion",
    "pagedadam": "PagedAdam",
    "pagedadam8bit": "PagedAdam8bit",
    "pagedadamw": "PagedAdamW",
    "pagedadamw8bit": "PagedAdamW8bit",
    "pagedlion8bit": "PagedLion8bit",
}
_TORCHAO = {"torchaoadamw8bit": "AdamW8bit", "torchaoadamw4bit": "AdamW4bit"}
_TRANSFORMERS_ADAFACTOR = "transformersadafactor"
_ADAFACTOR_ARGUMENTS = {"scale_parameter": True, "relative_step": True, "warmup_init": True, "lr": None}


def make_optimizers(
    wishes: list[Optimizer], modules: Mapping[str, nn.Module], offload: Offload
) -> list[torch.optim.Optimizer]:
    """`modules`: the trained components."""
    taken: set[int] = set()
    made = []
    for i, wish in enumerate(wishes):
        key = f"optimizer.{i}" if len(wishes) > 1 else "optimizer"
        chosen = _parameters(key, wish, modules)
        both = next((name for name, parameter in chosen if id(parameter) in taken), None)
        if both is not None:
            raise UsageError(f"{key}: {both} belongs to an earlier optimizer already: say `components` or `parameters`")
        taken |= {id(parameter) for _, parameter in chosen}
        if wish.in_backward:
            made += [_in_backward(key, wish, parameter, offload) for _, parameter in chosen]
            continue
        made.append(_make(key, wish, _groups(chosen) if wish.decay_groups else [p for _, p in chosen], offload))
    return made


def _parameters(key: str, wish: Optimizer, modules: Mapping[str, nn.Module]) -> list[tuple[str, nn.Parameter]]:
    names = list(modules) if wish.components is None else wish.components
    chosen = [
        (f"{component}.{name}", parameter)
        for component in names
        for name, parameter in modules[component].named_parameters()
        if parameter.requires_grad and (not wish.parameters or matches(name, wish.parameters))
    ]
    if not chosen:
        raise UsageError(f"{key}: there is no trained parameter for it; check `components` and `parameters`")
    return chosen


def _groups(chosen: list[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    decay = [parameter for name, parameter in chosen if not _NO_DECAY.search(name)]
    rest = [parameter for name, parameter in chosen if _NO_DECAY.search(name)]
    return [{"params": decay}, {"params": rest, "weight_decay": 0.0}]


def _make(key: str, wish: Optimizer, parameters: list[Any], offload: Offload) -> torch.optim.Optimizer:
    make, defaults = _class(key, wish)
    arguments = defaults | {
        name: tuple(value) if isinstance(value, list) else value for name, value in wish.arguments.items()
    }
    if _mixes_kinds(parameters):
        arguments.setdefault("foreach", False)  # which refuses tensors of both kinds together
    try:
        if offload.offloads_optimizer:
            return on_host(key, make, parameters, arguments, offload)
        return make(parameters, **arguments)  # type: ignore[no-any-return]
    except UsageError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise UsageError(f"{key}.arguments: {wish.factory or wish.name}: {error}") from None


def _in_backward(key: str, wish: Optimizer, parameter: nn.Parameter, offload: Offload) -> torch.optim.Optimizer:
    """An optimizer of one parameter, which takes its step when the gradient is there and lets go of it."""
    optimizer = _make(key, wish, [parameter], offload)

    def update(_: torch.Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    parameter.register_post_accumulate_grad_hook(update)
    return optimizer


def _mixes_kinds(parameters: list[Any]) -> bool:
    """Some parameters are split over cards (DTensor), and others whole on each."""
    tensors = [p for group in parameters for p in (group["params"] if isinstance(group, dict) else [group])]
    return len({hasattr(p, "placements") for p in tensors}) > 1


def _class(key: str, wish: Optimizer) -> tuple[Any, dict[str, Any]]:
    if wish.factory is not None:
        return load_factory(wish.factory), {}
    name = plain(wish.name)
    if name == "lbfgs":
        raise CannotPredict(f"{key}.name: L-BFGS calls the model itself; write the step in Python (`step: ...`)")
    if name in _TORCH:
        return _TORCH[name], {"lr": _LEARNING_RATE}
    if name in _BITSANDBYTES:
        return getattr(library("bitsandbytes", f"{key}: {wish.name}").optim, _BITSANDBYTES[name]), {
            "lr": _LEARNING_RATE
        }
    if name in _TORCHAO:
        return getattr(library("torchao", f"{key}: {wish.name}").optim, _TORCHAO[name]), {"lr": _LEARNING_RATE}
    if name == _TRANSFORMERS_ADAFACTOR:
        library("transformers", f"{key}: {wish.name}")
        from transformers.optimization import Adafactor

        return Adafactor, _ADAFACTOR_ARGUMENTS
    known = [*_TORCH, *_BITSANDBYTES, *_TORCHAO, "transformers-adafactor"]
    guess = nearest(name, known)
    raise UsageError(
        f"{key}.name: there is no optimizer {wish.name!r}{guess if guess.startswith(';') else ''}; write a class of "
        'torch.optim, one of bitsandbytes (adamw8bit), or factory: "package.module:Class"'
    )
