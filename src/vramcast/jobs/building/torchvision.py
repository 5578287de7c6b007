"""A model by its torchvision name."""

from __future__ import annotations

import torch

from vramcast.base.errors import UsageError
from vramcast.jobs.building.allowed import check_arguments, network_arguments, without_weights
from vramcast.jobs.building.built import Built, in_dtype
from vramcast.jobs.building.libraries import library
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Component

_GROUPS = {"segmentation": "segmentation", "detection": "detection", "video": "video", "optical_flow": "flow"}
_OF_BUILDERS = ("num_classes", "aux_loss", "aux_logits", "trainable_backbone_layers", "quantize", "progress")


def build(key: str, component: Component, dtype: torch.dtype) -> Built:
    """`key`: of the component, for messages."""
    name = component.torchvision or ""
    library("torchvision", f"torchvision: {name}")
    from torchvision import models

    if name not in models.list_models():
        guess = nearest(name, models.list_models())
        raise UsageError(f"torchvision: there is no model {name!r}{guess if guess.startswith(';') else ''}")
    builder = models.get_model_builder(name)
    arguments = without_weights(f"{key}.arguments", component.arguments)
    check_arguments(f"{key}.arguments", arguments, {*network_arguments(builder.__module__), *_OF_BUILDERS}, name)
    group = next((kind for part, kind in _GROUPS.items() if f".{part}." in f"{builder.__module__}."), "classification")
    if group in ("segmentation", "detection"):
        arguments["weights_backbone"] = None
    try:
        module = builder(weights=None, **arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"torchvision: {name} does not take these arguments: {error}") from None
    config = {"group": group, "name": name, "num_classes": arguments.get("num_classes")}
    return Built(module=in_dtype(module, dtype), config=config, family="torchvision")
