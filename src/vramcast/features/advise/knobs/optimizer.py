"""Optimizers with less state than Adam's eight bytes a parameter."""

from __future__ import annotations

import importlib.util
from typing import Any

from vramcast.features.advise.option import CHANGES_TRAINING, SAFE, USUAL, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.schema import Job, Optimizer

NAME = "optimizer"

_EIGHT_BIT = {"adam": "adam8bit", "adamw": "adamw8bit"}
_PAGED_TIME = 1.1
"""By rule of thumb; pages that must come from the host take far longer."""
_ADAM_ONLY = ("foreach", "fused", "capturable", "differentiable", "maximize", "amsgrad")


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if job.task != "training" or not job.components or len(job.optimizer) != 1:
        return []
    wish = job.optimizer[0]
    name = plain(wish.name)
    if wish.factory is not None or name not in _EIGHT_BIT:
        return []
    choices = []
    if not wish.arguments.get("fused"):
        cost = "costs nothing: the same update without temporary copies"
        choices.append(_option("fused Adam", wish, wish.name, {"fused": True}, cost, SAFE, 1.0))
    if importlib.util.find_spec("bitsandbytes") is not None:
        ratio = 0.26 if job.precision.weights_dtype == "fp32" else 0.52
        cost = "state in 8 bits: the loss is mostly the same; needs bitsandbytes"
        choices.append(_option("8-bit Adam", wish, _EIGHT_BIT[name], {}, cost, USUAL, ratio))
        cost = "state moves to the computer when the card is full; needs bitsandbytes"
        for text, paged in (("paged 8-bit Adam", f"paged-{_EIGHT_BIT[name]}"), ("paged Adam", f"paged-{name}")):
            choices.append(_option(text, wish, paged, {}, cost, USUAL, 0.0, _PAGED_TIME))
    cost = "another optimizer: choose its learning rate anew"
    choices.append(_option("Adafactor", wish, "adafactor", None, cost, CHANGES_TRAINING, 0.01))
    cost = "no adaptive rates: transformers mostly train badly with it"
    choices.append(_option("SGD", wish, "sgd", None, cost, CHANGES_TRAINING, 0.0))
    return choices


def _option(
    text: str,
    wish: Optimizer,
    name: str,
    more: dict[str, Any] | None,
    cost: str,
    risk: int,
    ratio: float,
    time: float = 1.0,
) -> Option:
    """`more`: arguments beside those that were said; None: none of them means the same here."""
    kept = {} if more is None else {k: v for k, v in wish.arguments.items() if k not in _ADAM_ONLY} | more
    other_fields = wish.model_dump(exclude_unset=True, exclude={"name", "arguments"})
    value: Any = {"name": name, **({"arguments": kept} if kept else {}), **other_fields}
    return Option(
        knob=NAME,
        text=text,
        changes={"optimizer": value if len(value) > 1 else name},
        cost=cost,
        risk=risk,
        time=time,
        by_rule=time != 1,
        state_ratio=ratio,
    )
