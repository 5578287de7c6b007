"""Half precision, where the card has it."""

from __future__ import annotations

from typing import Any

from vramcast.features.advise.option import CHANGES_TRAINING, USUAL, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job, Precision

NAME = "precision"

_BF16_FROM = (8, 0)
_FP16_FROM = (7, 0)
_LEFT = {"bf16": 0.7, "fp16": 0.7, "pure-bf16": 0.5, "pure-fp16": 0.5}
"""Share of the memory that is left, before there is a trace: weights and state stay what they are under autocast."""
_HALF_TIME = 0.5
"""Matrix products in half precision take at most half the time of fp32 on every card with tensor cores."""


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    now = job.precision
    if not job.components or any(value is not None for value in (now.weights, now.autocast, now.grad_scaler)):
        return []  # set part by part, so somebody meant it
    if now.weights_dtype != "fp32":
        return []
    speed = _HALF_TIME if now.autocast_dtype == "none" else 1.0
    choices = []
    if now.autocast_dtype == "none" and job.task == "training":
        if gpu.compute_capability >= _BF16_FROM:
            choices.append(_option(now, "bf16 autocast", "bf16", "activations are rounded to 8 bits", USUAL, speed))
        elif gpu.compute_capability >= _FP16_FROM:
            text = "needs a GradScaler; overflows in rare models"
            choices.append(_option(now, "fp16 autocast", "fp16", text, USUAL, speed))
    elif now.autocast_dtype == "bf16" and _FP16_FROM <= gpu.compute_capability < _BF16_FROM and job.task == "training":
        text = "this card computes bf16 step by step, fp16 at once; needs a GradScaler"
        choices.append(_option(now, "fp16 autocast", "fp16", text, USUAL, _HALF_TIME))
    if all(part.mode == "lora" for part in job.components.values() if part.is_trained):
        return choices  # the frozen base in half precision saves as much, and the adapters stay as they are
    says_fp32 = any(tensor.dtype == "fp32" for tensor in job.inputs.values())  # which bf16 weights do not take
    if gpu.compute_capability >= _BF16_FROM and not says_fp32:
        text = "small updates are lost to rounding: look at the loss, or round stochastically"
        choices.append(_option(now, "weights in bf16", "pure-bf16", text, CHANGES_TRAINING, speed))
    elif gpu.compute_capability >= _FP16_FROM and gpu.compute_capability < _BF16_FROM and not says_fp32:
        text = "small updates are lost, and Adam's epsilon vanishes in fp16: only for short fine-tuning"
        choices.append(_option(now, "weights in fp16", "pure-fp16", text, CHANGES_TRAINING, speed))
    return choices


def _option(now: Precision, text: str, preset: str, cost: str, risk: int, time: float) -> Option:
    value: Any = preset if now.tf32 is None else {"preset": preset, "tf32": now.tf32}  # what is left in fp32 stays so
    return Option(
        knob=NAME, text=text, changes={"precision": value}, cost=cost, risk=risk, time=time, traced=True,
        guess=_LEFT[preset],
    )  # fmt: skip
