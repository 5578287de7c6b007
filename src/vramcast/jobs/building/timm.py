"""A model by its timm name."""

from __future__ import annotations

import torch

from vramcast.base.errors import UsageError
from vramcast.jobs.building.allowed import check_arguments, network_arguments, without_weights
from vramcast.jobs.building.built import Built, in_dtype
from vramcast.jobs.building.libraries import library
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Component


def build(key: str, component: Component, dtype: torch.dtype) -> Built:
    """`key`: of the component, for messages."""
    name = component.timm or ""
    timm = library("timm", f"timm: {name}")
    known = known_arguments(name)
    if ":" in name or not known:
        guess = nearest(name, timm.list_models())
        raise UsageError(f"timm: there is no model {name!r}{guess if guess.startswith(';') else ''}")
    arguments = without_weights(f"{key}.arguments", component.arguments)
    check_arguments(f"{key}.arguments", arguments, known, name)
    try:
        module = timm.create_model(name, pretrained=False, **arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"timm: {name} does not take these arguments: {error}") from None
    config = {**getattr(module, "default_cfg", {}), "num_classes": getattr(module, "num_classes", 1000)}
    if "img_size" in arguments:
        size = arguments["img_size"]
        config["input_size"] = (3, size, size) if isinstance(size, int) else (3, *size)
    return Built(module=in_dtype(module, dtype), config=config, family="timm")


def known_arguments(name: str) -> set[str]:
    """What a model of timm may be made with; nothing, where there is no such model."""
    timm = library("timm", f"timm: {name}")
    plain = name.partition(".")[0]
    return network_arguments(timm.model_entrypoint(plain).__module__) if timm.is_model(plain) else set()
