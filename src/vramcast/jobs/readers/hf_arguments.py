"""Hugging Face `TrainingArguments` as a JSON or YAML file, with the script's own arguments in it or not."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.jobs.folders import CONFIG, read_json
from vramcast.jobs.readers import Part, Reading, Request, combine, deepspeed, fine_tuning, hf_model, hf_names
from vramcast.jobs.readers.documents import beside, peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.trace import Note

NAME = "Hugging Face TrainingArguments"

_CERTAIN = ("per_device_train_batch_size", "model_name_or_path")
_ENOUGH = 3
"""A file with fewer of the arguments' names is something else."""
_SHARE_KNOWN = 0.8
_NAMES = (*hf_names.WITHOUT_EFFECT, "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16", "optim")
_NOT_MODELLED = {
    "use_liger_kernel": "Liger kernels are not modelled: logits and their gradients take less than is predicted",
    "neftune_noise_alpha": "NEFTune's noise is not modelled: one more tensor of the embeddings' size",
    "auto_find_batch_size": "auto_find_batch_size halves the batch until it fits; the batch given is predicted",
    "torch_empty_cache_steps": "emptying the cache every few steps is not modelled",
    "label_smoothing_factor": "label smoothing is not modelled: a copy of the logits more",
}


class Dialect:
    """What a tool that is built on the Trainer adds to its arguments. This one adds nothing."""

    name = NAME
    known = hf_names.WITHOUT_EFFECT
    """Keys that change no byte."""

    def component(self, keys: Keys, task: str | None, notes: list[Note], unsupported: dict[str, str]) -> dict[str, Any]:
        """The changes to the model's component."""
        return hf_model.component_from(keys, task, notes, unsupported)

    def change(
        self, keys: Keys, data: dict[str, Any], notes: list[Note], unsupported: dict[str, str]
    ) -> tuple[dict[str, Any], fine_tuning.Finish | None]:
        """The job as the tool has it, and what can be said only when the model is known."""
        return data, None


def recognises(path: Path) -> bool:
    """Other tools have many of these names too: most of the keys must be known here."""
    keys = peek(path, ".json", ".yaml", ".yml")
    if any(name in keys for name in _CERTAIN):
        return True
    known = sum(name in _NAMES or name in hf_names.READ for name in keys)
    return sum(name in keys for name in _NAMES) >= _ENOUGH and known >= _SHARE_KNOWN * len(keys)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    return part_from(Keys.of(read_document(path), str(path)), path.parent, request)


def part_from(
    keys: Keys, folder: Path, request: Request, task: str | None = None, dialect: Dialect | None = None
) -> Part:
    """`folder`: what paths in it are relative to."""
    dialect = dialect or Dialect()
    notes: list[Note] = []
    assumed: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    model = _model(keys, folder)
    data: dict[str, Any] = {
        "sizes": _sizes(keys, assumed),
        "precision": _precision(keys, request.model or model, assumed),
        "optimizer": _optimizer(keys, assumed, unsupported),
        "accumulation": keys.whole("gradient_accumulation_steps") or 1,
        "checkpointing": _checkpointing(keys),
        "gpus": _gpus(keys),
        "zero_grad": "after-step",
        "outputs_live_until": "forward",
    }
    norm = keys.number("max_grad_norm")
    norm = hf_names.DEFAULT_LARGEST_NORM if norm is None else norm
    if norm:
        data["gradient_clipping"] = norm
    if keys.flag("torch_compile"):
        data["torch_compile"] = True
    data |= _evaluation(keys)
    component = dialect.component(keys, task, notes, unsupported)
    if component:
        data["components"] = {"model": component}
    data, finish = dialect.change(keys, data, notes, unsupported)
    if data["precision"].get("weights"):
        assumed.pop("precision", None)  # the tool itself decides in what its weights are
    samples = keys.whole("max_train_samples", most=10**12)
    if samples is not None:
        data["dataset"] = {"size": samples, "epochs": keys.number("num_train_epochs") or 3.0}
    for name, text in _NOT_MODELLED.items():
        if keys.take(name):
            notes.append(Note("not modelled", text, keys.where))
    keys.flag("use_cache")
    nested = _deepspeed(keys, folder, request)
    unused = keys.unused(dialect.known)
    second = next((name for name in unused if name in hf_names.SECOND_MODELS), None)
    if second is not None:
        unsupported["components"] = (
            f"{second}: a second model on the card is not modelled; leave it out to predict without it"
        )
    notes += unused_note(unused, keys.where)
    if nested is not None:
        _check_batches(keys, nested)
        data = combine.merge(data, nested.data)
        notes += nested.notes
        assumed |= nested.assumed
        unsupported |= nested.unsupported
    return Part(
        data=data, recognised_as=dialect.name, where=keys.where, notes=tuple(notes), assumed=assumed,
        unsupported=unsupported, model=model,
        finish=fine_tuning.chain(functools.partial(_without_cache, bool(keys.flag("use_cache"))), finish),
    )  # fmt: skip


def _without_cache(use_cache: bool, data: dict[str, Any]) -> dict[str, Any]:
    """The Trainer switches the cache of keys and values off, which a plain loop would fill."""
    model = data["components"].get("model", {})
    if not model.get("transformers"):
        return data
    model = {**model, "config": {"use_cache": use_cache, **model.get("config", {})}}
    return {**data, "components": {**data["components"], "model": model}}


def _model(keys: Keys, folder: Path) -> str | None:
    """The folder, where there is one; a name of the Hub stays as it is, for the message."""
    name = keys.text("model_name_or_path") or keys.text("model_name") or keys.text("model_id")
    if name is None:
        return str(folder) if os.path.isfile(folder / CONFIG) and folder != Path() else None
    return str(beside(name, folder))


def _sizes(keys: Keys, assumed: dict[str, str]) -> dict[str, int]:
    name = keys.first(hf_names.BATCH_NAMES)
    batch = keys.whole(name) if name else None
    if batch is None:
        batch = hf_names.DEFAULT_BATCH
        assumed["sizes.batch"] = f"{batch} samples for each GPU, the default of TrainingArguments (--batch)"
    sizes = {"batch": batch}
    for name in hf_names.SEQUENCE_NAMES:
        length = keys.whole(name)
        if length is not None:
            sizes.setdefault("sequence", length)
    return sizes


def _precision(keys: Keys, model: str | None, assumed: dict[str, str]) -> dict[str, Any]:
    bf16, fp16, tf32 = keys.flag("bf16"), keys.flag("fp16"), keys.flag("tf32")
    if bf16 and fp16:
        keys.fail("fp16", "bf16 and fp16 are both true: leave one out")
    # With neither, the Trainer leaves it to accelerate's own config.
    precision: dict[str, Any] = {"preset": "bf16" if bf16 else "fp16"} if bf16 or fp16 else {}
    if tf32 is not None:
        precision["tf32"] = tf32
    name = keys.first(hf_names.DTYPE_NAMES) or "dtype"
    dtype = keys.text(name, (*hf_names.DTYPES, "auto"))
    of_config = _config_dtype(model)
    if dtype is not None:
        precision["weights"] = hf_names.DTYPES.get(dtype, of_config or "fp32")
    elif of_config in ("fp16", "bf16"):
        assumed["precision"] = (
            f"fp32 weights; from transformers 5 on they are loaded as config.json says, in {of_config} "
            f"(--set precision.weights={of_config})"
        )
    return precision


def _config_dtype(model: str | None) -> str | None:
    """The dtype that the model's config.json names."""
    if model is None or not os.path.isfile(os.path.join(model, CONFIG)):
        return None
    try:
        config = read_json(Path(model) / CONFIG)
    except VramcastError:
        return None  # whoever reads the model says what is wrong with it
    name = config.get("dtype") or config.get("torch_dtype")
    return hf_names.DTYPES.get(name) if isinstance(name, str) else None


def _optimizer(keys: Keys, assumed: dict[str, str], unsupported: dict[str, str]) -> dict[str, Any]:
    name = keys.text("optim", (*hf_names.OPTIMIZERS, *hf_names.OTHER_OPTIMIZERS))
    if keys.flag("adafactor"):
        name = "adafactor"
    if name is None:
        name = hf_names.DEFAULT_OPTIMIZER
        assumed["optimizer"] = f"{name}, the default of TrainingArguments (--optimizer)"
    if name in hf_names.OTHER_OPTIMIZERS:
        unsupported["optimizer"] = f"optim: {name} is not modelled; name another with --optimizer to predict with that"
        name = "adamw_torch"
    return {**hf_names.OPTIMIZERS[name], "decay_groups": True}


def _checkpointing(keys: Keys) -> dict[str, Any]:
    options = keys.take("gradient_checkpointing_kwargs")
    if isinstance(options, str):
        try:
            options = json.loads(options)
        except (ValueError, RecursionError):
            keys.fail("gradient_checkpointing_kwargs", 'a JSON object is needed, e.g. {"use_reentrant": false}')
    if not keys.flag("gradient_checkpointing"):
        return {"scope": "none"}
    reentrant = options.get("use_reentrant", False) if isinstance(options, dict) else False
    return {"scope": "all", "reentrant": bool(reentrant)}


def _gpus(keys: Keys) -> dict[str, Any]:
    """DDP as the Trainer sets it up; how many GPUs there are is said by whoever starts it."""
    unused = keys.flag("ddp_find_unused_parameters")
    gpus: dict[str, Any] = {
        "find_unused_parameters": not keys.flag("gradient_checkpointing") if unused is None else unused
    }
    bucket = keys.number("ddp_bucket_cap_mb")
    if bucket:
        gpus["bucket_cap_mb"] = bucket
    if keys.flag("ddp_static_graph"):
        gpus["static_graph"] = True
    fsdp = keys.take("fsdp")
    if fsdp not in (None, "", [], False):
        words = fsdp.replace(",", " ").split() if isinstance(fsdp, str) else fsdp if isinstance(fsdp, list) else []
        options = keys.take("fsdp_config")
        wrap = options.get("transformer_layer_cls_to_wrap") if isinstance(options, dict) else None
        gpus |= {"strategy": "fsdp", "reshard_after_forward": "shard_grad_op" not in words}
        gpus |= {"offload_parameters": True} if "offload" in words else {}
        gpus |= {"wrap": wrap if isinstance(wrap, list) else [str(wrap)]} if wrap else {}
    else:
        keys.ignore("fsdp_config", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
    return gpus


def _evaluation(keys: Keys) -> dict[str, Any]:
    batch = keys.whole("per_device_eval_batch_size")
    when = [keys.take(name) for name in hf_names.EVALUATION_NAMES]
    if all(value in (None, "no", False) for value in when):
        return {}
    return {"evaluation": {"when": "between", "batch": batch or hf_names.DEFAULT_BATCH}}


def _deepspeed(keys: Keys, folder: Path, request: Request) -> Part | None:
    config = keys.take("deepspeed")
    if isinstance(config, dict):
        return deepspeed.part_from(Keys(config, f"{keys.where}: deepspeed", absent=deepspeed.ABSENT))
    file = keys.text("deepspeed")
    return deepspeed.read_part(beside(file, folder), request) if file else None


def _check_batches(keys: Keys, nested: Part) -> None:
    """The Trainer refuses a DeepSpeed config that says another batch than its own argument."""
    ours, theirs = keys.whole("per_device_train_batch_size"), nested.data.get("sizes", {}).get("batch")
    if ours is not None and theirs is not None and ours != theirs:
        keys.fail("per_device_train_batch_size", f"{ours}, but train_micro_batch_size_per_gpu of DeepSpeed is {theirs}")
