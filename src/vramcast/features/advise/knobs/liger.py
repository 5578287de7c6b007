"""Liger Kernel's fused norms, activations, rotary embeddings and loss. Only on request."""

from __future__ import annotations

import importlib.util

from vramcast.features.advise.option import USUAL, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Component, Job

NAME = "liger"

_FASTER, _SMALLER = 0.95, 0.8
"""Rules of thumb until there is a trace."""


def why_not(job: Job) -> str | None:
    if job.task != "training" or not _parts(job) or job.script is not None:
        return "this takes a training job with a transformers model that is trained"
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger-kernel is not installed here (pip install liger-kernel; it needs no GPU)"
    return None


def _parts(job: Job) -> dict[str, Component]:
    return {name: part for name, part in job.components.items() if part.transformers is not None and part.is_trained}


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if why_not(job) is not None:
        return []
    parts = _parts(job)
    on = all(part.liger for part in parts.values())
    text, cost = ("no Liger Kernel", "none") if on else ("Liger Kernel", "liger-kernel must be installed")
    changes = {f"components.{name}.liger": not on for name in parts}
    time, memory = (1 / _FASTER, 1 / _SMALLER) if on else (_FASTER, _SMALLER)
    return [
        Option(
            knob=NAME, text=text, changes=changes, cost=cost, time=time, traced=True, guess=memory, risk=USUAL,
            excludes=("loss",),
        )
    ]  # fmt: skip
