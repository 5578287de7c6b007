"""The family of a built component, and its usual inputs."""

from __future__ import annotations

from vramcast.base.errors import UsageError
from vramcast.jobs.building.built import Built
from vramcast.jobs.building.usual_inputs import diffusers_models, transformers_models, vision_models
from vramcast.jobs.building.usual_inputs.usual import Usual

_FAMILIES = {
    "transformers": transformers_models.usual,
    "diffusers": diffusers_models.usual,
    "timm": vision_models.timm,
    "torchvision": vision_models.torchvision,
}


def usual_inputs(name: str, built: Built) -> Usual:
    """UsageError that says what to write where nothing is usual for this model."""
    family = _FAMILIES.get(built.family)
    usual = family(type(built.model).__name__, built) if family is not None else None
    if usual is None:
        what = "a factory" if built.family == "factory" else f"a {type(built.model).__name__}"
        raise UsageError(
            f"components.{name}: what {what} is called with is not known; say it under inputs, e.g.\n"
            "    inputs:\n      x: {shape: [batch, 3, height, width]}"
        )
    return usual
