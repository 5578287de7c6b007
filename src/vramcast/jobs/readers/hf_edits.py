"""What hf_arguments.py reads, the other way round: which arguments say a change, as a file's keys or a command's
flags."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from vramcast.jobs.optimizer_names import optimizer_named
from vramcast.jobs.readers import Edits, deepspeed, hf_names
from vramcast.jobs.readers.documents import beside
from vramcast.jobs.readers.keys import Keys
from vramcast.jobs.schema import Checkpointing, Job

_TRL = ("use_peft", "lora_r", "packing", "dataset_text_field")
"""Arguments of TRL's scripts, which know `use_peft`."""
_BITS = {"nf4": "load_in_4bit", "int8": "load_in_8bit"}


STEPS = "max_steps"
"""What it calls the number of optimizer steps."""


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    return {**_own(keys, aspect, job), **_nested(keys, aspect, job)}


def nested_files(keys: Keys, folder: Path) -> list[Path]:
    """Configs that it names, which say a part too."""
    file = keys.take("deepspeed")
    return [beside(file, folder)] if isinstance(file, str) else []


def _own(keys: Keys, aspect: str, job: Job) -> Edits:
    match aspect:
        case "batch":
            return {(keys.first(hf_names.BATCH_NAMES) or hf_names.BATCH_NAMES[0],): job.effective_sizes["batch"]}
        case "accumulation":
            return {("gradient_accumulation_steps",): job.accumulation}
        case "sequence":  # a script knows one of the names, and which is not known here
            name = keys.first(hf_names.SEQUENCE_NAMES)
            return {(name,): job.sizes["sequence"]} if name and "sequence" in job.sizes else {}
        case "precision":
            return _precision(keys, job)
        case "optimizer":
            name = optimizer_named(hf_names.OPTIMIZERS, job.optimizer[0]) if len(job.optimizer) == 1 else None
            return {("optim",): name, **({("adafactor",): False} if keys.flag("adafactor") else {})} if name else {}
        case "checkpointing":
            return _checkpointing(keys, job, job.checkpointing)
        case "components":
            return _model(keys, job)
        case "evaluation" if job.evaluation is None:
            name = keys.first(hf_names.EVALUATION_NAMES)
            return {(name,): "no"} if name else {}
    return {}


def _nested(keys: Keys, aspect: str, job: Job) -> Edits:
    """A DeepSpeed config that is written out: only what it says already."""
    config = keys.take("deepspeed")
    if not isinstance(config, dict):
        return {}
    inner = Keys(config, keys.where, absent=deepspeed.ABSENT)
    changes = deepspeed.edits(inner, aspect, job)
    return {("deepspeed", *key): value for key, value in changes.items() if inner.says(key)}


def _precision(keys: Keys, job: Job) -> Edits:
    wish = job.precision
    changes: Edits = {
        (name,): wish.autocast_dtype == name
        for name in ("bf16", "fp16")
        if bool(keys.flag(name)) != (wish.autocast_dtype == name)
    }
    spelt = next((text for text, dtype in hf_names.DTYPES.items() if dtype == wish.weights_dtype), None)
    name = keys.first(hf_names.DTYPE_NAMES)
    if spelt is not None and (name or spelt != "float32") and "finetuning_type" not in keys:
        changes[(name or hf_names.DTYPE_NAMES[0],)] = spelt
    if bool(keys.flag("tf32")) != wish.uses_tf32:
        changes[("tf32",)] = wish.uses_tf32
    return changes


def _checkpointing(keys: Keys, job: Job, wish: Checkpointing) -> Edits:
    if wish.scope == "modules":
        return {}
    wanted = wish.scope == "all"
    if "finetuning_type" in keys:
        return {("disable_gradient_checkpointing",): not wanted}
    changes: Edits = {("gradient_checkpointing",): wanted}
    options = keys.take("gradient_checkpointing_kwargs")
    reentrant = options.get("use_reentrant", False) if isinstance(options, dict) else False
    if wanted and reentrant != wish.reentrant:
        changes[("gradient_checkpointing_kwargs",)] = {"use_reentrant": wish.reentrant}
    if job.gpus.count > 1 and keys.flag("ddp_find_unused_parameters") is None:  # it would follow from the other
        changes[("ddp_find_unused_parameters",)] = job.gpus.find_unused_parameters
    return changes


def _model(keys: Keys, job: Job) -> Edits:
    part = job.components.get("model")
    changes: Edits = {}
    if part is None or not any(name in keys for name in _TRL):
        return changes
    if part.mode == "lora" and not keys.flag("use_peft"):
        changes[("use_peft",)] = True
        if part.lora is not None:
            changes[("lora_r",)] = part.lora.rank
    if part.quantization in _BITS and not keys.flag(_BITS[part.quantization]):
        changes[(_BITS[part.quantization],)] = True
    return changes


def as_flags(edits: Edits) -> dict[str, Any]:
    """For a command line, where a value is one word."""
    return {
        str(key[-1]): shlex.quote(json.dumps(value)) if isinstance(value, dict) else value
        for key, value in edits.items()
        if len(key) == 1
    }
