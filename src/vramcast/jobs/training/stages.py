"""A stage of a pipeline: the part of a model of transformers that one rank holds."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import CannotPredict
from vramcast.jobs.folders import CONFIG, merged, read_json
from vramcast.jobs.schema import Component, Job
from vramcast.jobs.training.dtypes import DTYPES

_LAYERS = "num_hidden_layers"


def layers_of(stage: int, stages: int, layers: int) -> range:
    """The layers of a stage: even shares, the first stages have one more where they do not divide."""
    each, more = divmod(layers, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def cut_component(component: Component, stage: int, stages: int) -> Component:
    """The component with the layers of this stage only, so that no others are built."""
    config: dict[str, Any] = {}
    if component.source == "transformers":
        config = merged(read_json(Path(component.transformers or "", component.subfolder or "", CONFIG)), component.config)
    layers = config.get(_LAYERS)
    if component.source != "transformers" or not isinstance(layers, int):
        raise CannotPredict(
            "gpus.pipeline: models of transformers are cut into stages; a program that does it itself is run with "
            "`vramcast run --gpus N`"
        )
    if layers < stages:
        raise CannotPredict(f"gpus.pipeline: {layers} layers cannot be cut into {stages} stages")
    mine = layers_of(stage, stages, layers)
    of_layers = {
        key: value[mine.start : mine.stop]
        for key, value in config.items()
        if isinstance(value, list) and len(value) == layers
    }
    return component.model_copy(update={"config": {**component.config, **of_layers, _LAYERS: len(mine)}})


class Stage(nn.Module):
    """Ids come in at the first stage and logits leave the last; between them are hidden states."""

    def __init__(self, model: Any, job: Job, *, first: bool, last: bool) -> None:
        super().__init__()
        inner = model.base_model
        plan = getattr(model.config, "base_model_pp_plan", None)
        if not plan or "layers" not in plan:
            raise CannotPredict(
                f"gpus.pipeline: {type(model).__name__} has no plan of stages in transformers; models such as Llama "
                "have one"
            )
        names = list(plan)
        at = names.index("layers")
        for name in ([] if first else names[:at]) + ([] if last else names[at + 1 :]):
            setattr(inner, name, nn.Identity())
        self.model = model if last else inner
        self._argument = "input_ids" if first else "inputs_embeds"
        self._last = last
        self._half = job.precision.autocast_dtype
        self._no_split_modules = getattr(model, "_no_split_modules", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with nullcontext() if self._half == "none" else torch.autocast("cuda", dtype=DTYPES[self._half]):
            output = self.model(**{self._argument: x}, use_cache=False)
        return output.logits if self._last else output.last_hidden_state  # type: ignore[no-any-return]
