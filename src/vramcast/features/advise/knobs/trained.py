"""Train adapters over a frozen base in half precision or 4 bits: the usual way to fine-tune what is too large."""

from __future__ import annotations

import importlib.util
from typing import Any

from vramcast.features.advise.language_models import attention_layers, has_experts, model_type
from vramcast.features.advise.option import LAST_RESORT, USUAL, Option
from vramcast.features.advise.peft_targets import models_with_usual_targets
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "trained"

_BF16_FROM = (8, 0)
_FP16_FROM = (7, 0)
_DEQUANTIZED = 1.25
"""A 4-bit base is turned into half precision again in every pass."""
_WITHOUT_CASTS, _HALF_TIME = 0.95, 0.48
"""Weights that autocast need not cast; products in half precision beside."""
LORA, QLORA = "LoRA of rank 16", "QLoRA of rank 16"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if job.task != "training" or importlib.util.find_spec("peft") is None:
        return []
    trained = {name: part for name, part in job.components.items() if part.mode == "trained" and part.same_as is None}
    half = _half_precision(job, gpu)
    choices = []
    for name, part in trained.items():
        if part.transformers is not None and not part.train_only and not part.freeze:
            choices += _of_component(job, name, half, f" for {name}" if len(trained) > 1 else "")
    adapted = {name: part for name, part in job.components.items() if part.mode == "lora" and part.same_as is None}
    for name in adapted:
        choices += _below_adapters(job, name, half, f" of {name}" if len(adapted) > 1 else "")
    return choices


def _below_adapters(job: Job, name: str, half: str, of_name: str) -> list[Option]:
    """The frozen weights of adapters that a job has already, in fewer bits; the adapters stay as they are."""
    part = job.components[name]
    if not half or part.quantization != "none":
        return []
    key = f"components.{name}"
    in_half = _in_half(job, name, half)
    if in_half and part.transformers is None and (part.lora is None or part.lora.dtype is None):
        in_half[f"{key}.lora.dtype"] = "fp32"  # peft sees to it for models of transformers alone
    choices = []
    if in_half:
        cost = "frozen weights lose digits that half precision would not use; the adapters stay in fp32"
        time = _HALF_TIME if "precision" in in_half else _WITHOUT_CASTS
        choices.append(_option(f"{half} base{of_name}", in_half, cost, time, USUAL))
    if importlib.util.find_spec("bitsandbytes") is not None:
        cost = "the frozen weights are rounded to 4 bits; needs bitsandbytes"
        changes = {f"{key}.quantization": "nf4", **in_half}
        choices.append(_option(f"4-bit base{of_name}", changes, cost, _DEQUANTIZED))
    return choices


def _of_component(job: Job, name: str, half: str, for_name: str) -> list[Option]:
    """LoRA and QLoRA of one component. `for_name`: what tells it from the others, where there are several."""
    base = {**_in_half(job, name, half), **_targets(job, name)}
    words = {"bf16": "bf16 base", "fp16": "fp16 base"}.get(str(base.get(f"components.{name}.dtype")), "")
    text = f"{LORA}{for_name}{f', {words}' if words else ''}"
    cost = "only adapters are trained: for fine-tuning, not for training from scratch"
    choices = [_option(text, {f"components.{name}.mode": "lora", **base}, cost, 1.0)]
    if half and importlib.util.find_spec("bitsandbytes") is not None:
        changes = {f"components.{name}.mode": "lora", f"components.{name}.quantization": "nf4", **base}
        cost = "adapters over weights rounded to 4 bits: for fine-tuning; needs bitsandbytes"
        if has_experts(job.components[name]):
            changes[f"components.{name}.quantize_experts"] = True
            cost = (
                "adapters over weights and experts rounded to 4 bits: for fine-tuning; needs bitsandbytes and its "
                "replace_parameter_4bit (axolotl: quantize_moe_experts)"
            )
        choices.append(_option(f"{QLORA}{for_name}, 4-bit base", changes, cost, _DEQUANTIZED))
    return choices


def _targets(job: Job, name: str) -> dict[str, Any]:
    """Where peft has no layers of its own choice for the model, all linear ones, as QLoRA's authors have it; of experts
    attention alone, as people do: peft refuses its own choice for those that transformers 5 fuses."""
    part = job.components[name]
    if part.lora is not None:
        return {}
    attention = attention_layers(part) if has_experts(part) else []
    if attention:
        return {f"components.{name}.lora.targets": attention}
    known, kind = models_with_usual_targets(), model_type(part)
    if not known or not kind or kind in known:
        return {}
    return {f"components.{name}.lora.targets": "all-linear"}


def _half_precision(job: Job, gpu: GpuSpec) -> str:
    of_card = "bf16" if gpu.compute_capability >= _BF16_FROM else "fp16" if gpu.compute_capability >= _FP16_FROM else ""
    if job.precision.weights_dtype != "fp32":
        return job.precision.weights_dtype
    said = job.precision.autocast_dtype
    return said if said == "fp16" or (said == "bf16" and of_card != "fp16") else of_card


def _in_half(job: Job, name: str, half: str) -> dict[str, Any]:
    """Frozen weights lose nothing in half precision that matters: peft keeps the adapters in fp32. Under autocast, so
    that their products are in half precision too."""
    part, now = job.components[name], job.precision
    if not half or part.dtype is not None or now.weights_dtype != "fp32":
        return {}
    if any(value is not None for value in (now.weights, now.autocast, now.grad_scaler)):
        return {}  # it was said part by part: somebody meant it
    autocast: Any = half if now.tf32 is None else {"preset": half, "tf32": now.tf32}
    return {f"components.{name}.dtype": half} | ({} if now.autocast_dtype == half else {"precision": autocast})


def _option(text: str, changes: dict[str, Any], cost: str, time: float, risk: int = LAST_RESORT) -> Option:
    in_half = any(key.endswith((".dtype", ".quantization")) for key in changes)
    excludes = ("freezing", *(("precision",) if in_half else ()))
    return Option(
        knob=NAME,
        text=text,
        changes=changes,
        cost=cost,
        risk=risk,
        time=time,
        traced=True,
        excludes=excludes,
    )
