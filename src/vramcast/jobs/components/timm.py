"""A model by its timm name."""

from __future__ import annotations

import torch

from vramcast.errors import UsageError
from vramcast.jobs.components.built import Built, in_dtype
from vramcast.jobs.components.libraries import library
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Component


def build(component: Component, dtype: torch.dtype) -> Built:
    name = component.timm or ""
    timm = library("timm", f"timm: {name}")
    if not timm.is_model(name.partition(".")[0]):
        guess = nearest(name, timm.list_models())
        raise UsageError(f"timm: there is no model {name!r}{guess if guess.startswith(';') else ''}")
    try:
        module = timm.create_model(name, pretrained=False, **component.arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"timm: {name} does not take these arguments: {error}") from None
    config = {**getattr(module, "default_cfg", {}), "num_classes": getattr(module, "num_classes", 1000)}
    if "img_size" in component.arguments:
        size = component.arguments["img_size"]
        config["input_size"] = (3, size, size) if isinstance(size, int) else (3, *size)
    return Built(module=in_dtype(module, dtype), config=config, family="timm")
