"""A part of the run in the computer's memory, by the mechanisms of PyTorch, torchao, diffusers and accelerate."""

from __future__ import annotations

import importlib.util
from typing import Any

from vramcast.features.advise.option import SAFE, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.offload import optimizer_problem
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.schema import Job

NAME = "offload"

_PAGEABLE_GB_PER_SECOND = 5
"""What a copy from or to memory that is not pinned comes to."""
_USUAL_TFLOPS = 100.0
_ACTIVATIONS, _COMPONENTS, _OPTIMIZER = 0.23, 0.01, 0.0034
"""Time beside that of the arithmetic, by its rate in TFLOPS and the copies' in GB/s: measured on an H200 with GPT-2, an
SD-like U-Net with T5, and a 1.1 B Llama. Copies and the CPU's step are not hidden behind the arithmetic."""
_TORCH_OPTIMIZERS = ("adam", "adamw", "sgd", "adamax", "nadam", "radam", "rmsprop", "adagrad")


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if not job.components:
        return []
    rate = round(gpu.architecture.host_bytes_per_second / 1e9)
    over = f"copied over PCI Express at {rate} GB/s at most"
    tflops = gpu.bf16_tflops or gpu.fp16_tflops or _USUAL_TFLOPS
    moved = 1 + _COMPONENTS * tflops / _PAGEABLE_GB_PER_SECOND
    on_cpu = 1 + _OPTIMIZER * tflops
    pinned = 1 + _ACTIVATIONS * tflops / rate
    choices = []
    if _components(job):
        choices.append(_option("components between their calls", {"components": "model"}, over, moved))
        if importlib.util.find_spec("accelerate") is not None:
            cost = f"every module is {over} in every call; needs accelerate"
            choices.append(_option("components module by module", {"components": "sequential"}, cost, 1.5 * moved))
    if job.task != "training":
        return choices
    if _optimizer(job):
        beside = ("gpus", "precision: fp16 autocast", *_OTHER_OPTIMIZERS)
        cost = "the CPU makes the step; needs torchao"
        optimizer: dict[str, Any] = {"optimizer": True}
        choices.append(_option("optimizer", optimizer, cost, on_cpu, beside))
        if job.accumulation == 1:
            cost += "; nothing can be accumulated"
            both = {**optimizer, "gradients": True}
            choices.append(_option("optimizer and gradients", both, cost, on_cpu, ("batch", *beside)))
    if not job.offload.activations:
        cost = f"{over}, and the computer's memory must hold them, pinned: pageable memory takes several times as long"
        activations: dict[str, Any] = {"activations": True, "pinned": True}
        choices.append(_option("activations", activations, cost, pinned))
        if _optimizer(job):
            time = pinned + on_cpu - 1
            text = "optimizer and activations"
            choices.append(_option(text, {**optimizer, **activations}, cost, time, beside))
    return choices


_OTHER_OPTIMIZERS = tuple(f"optimizer: {text}" for text in ("8-bit Adam", "paged 8-bit Adam", "paged Adam"))


def _option(text: str, settings: dict[str, Any], cost: str, time: float, excludes: tuple[str, ...] = ()) -> Option:
    return Option(
        knob=NAME,
        text=f"offload {text}",
        changes={f"offload.{key}": value for key, value in settings.items()},
        cost=cost,
        risk=SAFE,
        time=time,
        by_rule=True,
        state_ratio=0.0 if "optimizer" in settings else 1.0,
        traced="activations" in settings,
        excludes=excludes,
    )


def _components(job: Job) -> bool:
    """Something lies on the card that need not lie there all the time."""
    if job.offload.components != "none":
        return False
    trial = job.model_copy(update={"offload": job.offload.model_copy(update={"components": "model"})})
    moved = [name for name in job.components if trial.offload_of(name) != "none"]
    return bool(moved) if job.task == "training" else len(moved) > 1


def _optimizer(job: Job) -> bool:
    if job.offload.offloads_optimizer or len(job.optimizer) != 1 or optimizer_problem(job) is not None:
        return False
    wish = job.optimizer[0]
    name = plain(wish.name)
    known = wish.factory is None and name in _TORCH_OPTIMIZERS
    return known and importlib.util.find_spec("torchao") is not None
