"""Attention of transformers' models by PyTorch's kernels, by flash-attn's, or step by step. Only on request."""

from __future__ import annotations

from typing import Any

from vramcast.features.advise.language_models import flash_attention_fits
from vramcast.features.advise.option import USUAL, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Component, Job

NAME = "attention"

_FLASH_FROM = (8, 0)
_EAGER, _SDPA, _FLASH = "eager", "sdpa", "flash_attention_2"
_COSTS = {
    _SDPA: "none: PyTorch's own fused kernels",
    _FLASH: "flash-attn must be installed; half precision alone",
    _EAGER: "the whole matrix of weights is kept for every layer",
}
_GUESSES = {_EAGER: (1.5, 1.5), _SDPA: (1.0, 1.0), _FLASH: (0.98, 1.0)}
"""Time and memory beside sdpa: rules of thumb until there is a trace."""


def why_not(job: Job) -> str | None:
    if job.task != "training" or not _parts(job) or job.script is not None:
        return "this takes a training job with a transformers model"
    return None


def _parts(job: Job) -> dict[str, Component]:
    return {name: part for name, part in job.components.items() if part.transformers is not None}


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if why_not(job) is not None:
        return []
    parts = _parts(job)
    now = {_of(part) for part in parts.values()}
    if len(now) > 1 or not now <= {_EAGER, _SDPA, _FLASH}:
        return []  # somebody chose for each
    (current,) = now
    half = {job.precision.autocast_dtype, job.precision.weights_dtype} & {"bf16", "fp16"}
    can_flash = half and gpu.compute_capability >= _FLASH_FROM and all(map(flash_attention_fits, parts.values()))
    others = [way for way in (_SDPA, _FLASH, _EAGER) if way != current and (way != _FLASH or can_flash)]
    return [_option(way, current, parts) for way in others]


def _of(part: Component) -> Any:
    asked = part.arguments.get("attn_implementation") or part.config.get("attn_implementation")
    return asked or _SDPA


def _option(way: str, current: str, parts: dict[str, Component]) -> Option:
    time, memory = (ours / before for ours, before in zip(_GUESSES[way], _GUESSES[current], strict=True))
    changes = {f"components.{name}.arguments.attn_implementation": way for name in parts}
    return Option(
        knob=NAME, text=f"attn_implementation={way}", changes=changes, cost=_COSTS[way], time=time, traced=True,
        guess=memory, risk=USUAL if way == _FLASH else 0,
    )  # fmt: skip
