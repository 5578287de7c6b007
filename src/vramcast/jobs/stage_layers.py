"""How the layers of a model are dealt out to the stages of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict
from vramcast.jobs.folders import CONFIG, merged, read_json
from vramcast.jobs.schema import Component

_LAYERS = "num_hidden_layers"


def layers_of(stage: int, stages: int, layers: int) -> range:
    """The layers of a stage: even shares; the first stages have one more where they do not divide."""
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def layer_count(component: Component) -> int:
    layers = _config(component).get(_LAYERS)
    if not isinstance(layers, int):
        raise CannotPredict(
            "gpus.pipeline: models of transformers are cut into stages; a program that does it itself is run with "
            "`vramcast run --gpus N`"
        )
    return layers


def cut_component(component: Component, stage: int, stages: int) -> Component:
    """The component with the layers of this stage only, so that no others are built."""
    layers = layer_count(component)
    if layers < stages:
        raise CannotPredict(f"gpus.pipeline: {layers} layers cannot be cut into {stages} stages")
    mine = layers_of(stage, stages, layers)
    of_layers = {
        key: value[mine.start : mine.stop]
        for key, value in _config(component).items()
        if isinstance(value, list) and len(value) == layers
    }
    return component.model_copy(update={"config": {**component.config, **of_layers, _LAYERS: len(mine)}})


def _config(component: Component) -> dict[str, Any]:
    if component.source != "transformers":
        return {}
    path = Path(component.transformers or "") / (component.subfolder or "") / CONFIG
    return dict(merged(read_json(path), component.config))
