"""A stage of a pipeline: the part of a model of transformers that one rank holds."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import CannotPredict
from vramcast.jobs.schema import Job
from vramcast.jobs.training.dtypes import DTYPES


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
