"""Activations of every block computed again in the backward pass, or not."""

from __future__ import annotations

from vramcast.features.advise.option import Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.own_checkpointing import checkpointed_now
from vramcast.jobs.schema import Job

NAME = "checkpointing"

_RECOMPUTE = 4 / 3
"""One more forward pass beside a forward and a backward pass of twice its length."""
_RECOMPUTE_MORE = 1.1
"""Where most of it is computed again already."""


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    parts = [part for part in job.components.values() if part.is_trained]
    if job.task != "training" or not parts or any(part.checkpointing is not None for part in parts):
        return []
    now = checkpointed_now(job)
    choices = []
    if now != "all":
        cost = "blocks are computed twice; the result is the same"
        time, guess = (_RECOMPUTE, 0.5) if now == "none" else (_RECOMPUTE_MORE, 0.8)
        choices.append(_option("checkpoint every block", "all", cost, time, guess))
    if now != "none":
        choices.append(_option("no checkpointing", "none", "costs memory only: it is faster", 1 / _RECOMPUTE, 2.0))
    return choices


def _option(text: str, scope: str, cost: str, time: float, guess: float) -> Option:
    changes = {"checkpointing": scope}
    return Option(knob=NAME, text=text, changes=changes, cost=cost, time=time, traced=True, guess=guess)
