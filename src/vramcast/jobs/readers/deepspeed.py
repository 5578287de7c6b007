"""A DeepSpeed JSON: batch, accumulation, precision, optimizer, ZeRO stage and offload. It names no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.jobs.optimizer_names import optimizer_named
from vramcast.jobs.readers import Edits, Part, Reading, Request, combine
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job
from vramcast.jobs.schema.machine import ZERO_OPTIONS
from vramcast.trace import Note

NAME = "DeepSpeed config"
ABSENT = ("auto",)
""" "auto" leaves a value to whoever calls DeepSpeed."""

_CERTAIN = ("train_micro_batch_size_per_gpu", "zero_optimization", "zero_allow_untested_optimizer", "fp16", "bf16")
_ONLY_THERE = ("train_micro_batch_size_per_gpu", "zero_optimization", "zero_allow_untested_optimizer")
_SPELLINGS = {"adam": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}
_KEPT = ("lr", "weight_decay")
"""Arguments that every optimizer has."""
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"name": "adamw", "arguments": {"fused": True}},
    "adamw": {"name": "adamw", "arguments": {"fused": True}},
    "fusedadam": {"name": "adamw", "arguments": {"fused": True}},
    "sgd": {"name": "sgd"},
    "adagrad": {"name": "adagrad"},
}
_OTHER_OPTIMIZERS = ("lamb", "onebitadam", "onebitlamb", "zerooneadam", "lion", "muon", "muadam", "muadamw", "musgd")
_OTHER_ZERO = (
    "zero_hpz_partition_size",
    "zero_quantized_weights",
    "zero_quantized_gradients",
    "mics_shard_size",
    "zenflow",
)
_KNOWN = frozenset((
    "steps_per_print", "wall_clock_breakdown", "scheduler", "dump_state", "prescale_gradients",
    "gradient_predivide_factor", "communication_data_type", "sparse_gradients", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comms_logger", "aio",
    "elasticity", "autotuning", "data_efficiency", "curriculum_learning", "checkpoint", "data_types",
    "disable_allgather", "memory_breakdown", "progressive_layer_drop", "dataloader_drop_last",
))  # fmt: skip


def recognises(path: Path) -> bool:
    keys = peek(path, ".json")
    sections = [name for name in _CERTAIN if name in keys and (name in _ONLY_THERE or isinstance(keys[name], dict))]
    return bool(sections)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    return part_from(Keys.of(read_document(path), str(path), ABSENT))


def part_from(keys: Keys) -> Part:
    notes: list[Note] = []
    assumed: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    data: dict[str, Any] = _batch(keys, assumed)
    data["gpus"] = {**data.get("gpus", {}), **_zero(keys.section("zero_optimization"), unsupported)}
    preset = _preset(keys)
    if preset:
        data["precision"] = {"preset": preset}
    norm = keys.number("gradient_clipping")
    if norm:
        data["gradient_clipping"] = norm
    if "optimizer" in keys:
        data["optimizer"] = _optimizer(keys.section("optimizer"), unsupported)
    for name in ("amp", "compression_training", "sparse_attention", "tensor_parallel", "hybrid_engine"):
        below = keys.take(name)
        if below and not (isinstance(below, dict) and below.get("enabled") is False):
            unsupported["gpus"] = (
                f"{name}: this part of DeepSpeed is not modelled; leave it out, or --set gpus.strategy=ddp"
            )
    if not data["gpus"]["zero_stage"]:
        notes.append(Note("DeepSpeed", "without ZeRO it is predicted as DDP", keys.where))
    if "activation_checkpointing" in keys:
        text = (
            "activation_checkpointing only sets how deepspeed.checkpointing works; say with --checkpointing all that "
        )
        notes.append(Note("checkpointing", text + "the model uses it", keys.where))
    notes += unused_note(keys.unused(_KNOWN), keys.where)
    return Part(
        data=data, recognised_as=NAME, where=keys.where, notes=tuple(notes), assumed=assumed, unsupported=unsupported
    )


def _batch(keys: Keys, assumed: dict[str, str]) -> dict[str, Any]:
    """train_batch_size = micro batch × accumulation × GPUs; whichever is left out follows from the others."""
    micro, total = keys.whole("train_micro_batch_size_per_gpu"), keys.whole("train_batch_size")
    passes = keys.whole("gradient_accumulation_steps", most=100_000)
    data: dict[str, Any] = {} if passes is None else {"accumulation": passes}
    if micro is not None:
        data["sizes"] = {"batch": micro}
        if total is not None:
            share, left = divmod(total, micro * (passes or 1))
            if left or not share:
                factors = f"{micro} a GPU" + (f" × {passes} passes" if passes else "")
                keys.fail("train_batch_size", f"{total} is no multiple of {factors}")
            if passes is not None:
                data["gpus"] = {"count": share}
            else:
                data["accumulation"] = share
                assumed["accumulation"] = f"{share} passes for one step, as on one GPU (--set accumulation=N)"
    elif total is not None:
        if total % (passes or 1):
            keys.fail("train_batch_size", f"{total} is no multiple of {passes} passes")
        data["gpus"] = {"global_batch": total // (passes or 1)}
    return data


def _preset(keys: Keys) -> str | None:
    bf16 = keys.section("bf16" if "bf16" in keys else "bfloat16").flag("enabled")
    fp16 = keys.section("fp16").flag("enabled")
    for name in ("bf16", "bfloat16", "fp16"):
        keys.section(name).as_dict()
    if bf16 and fp16:
        keys.fail("fp16", "bf16 and fp16 are both enabled: leave one out")
    if bf16 is None and fp16 is None:
        return None
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


def _zero(keys: Keys, unsupported: dict[str, str]) -> dict[str, Any]:
    gpus: dict[str, Any] = {"strategy": "deepspeed", "zero_stage": keys.whole("stage", least=0, most=3) or 0}
    old = {"offload_optimizer": "cpu_offload", "offload_parameters": "cpu_offload_params"}
    for field, name in {"offload_optimizer": "offload_optimizer", "offload_parameters": "offload_param"}.items():
        device = keys.section(name).text("device", ("none", "cpu", "nvme"))
        keys.section(name).as_dict()
        if device not in (None, "none") or keys.flag(old[field]):
            gpus[field] = True
    said = {str(name): value for name, value in keys.as_dict().items()}
    for name in _OTHER_ZERO:
        if said.get(name) not in (None, False, -1, 0, 1):
            unsupported["gpus"] = f"zero_optimization.{name}: not modelled; leave it out, or --set gpus.strategy=ddp"
    options = {name: said[name] for name in ZERO_OPTIONS if isinstance(said.get(name), int | float | str)}
    return {**gpus, "zero": options} if options and gpus["zero_stage"] else gpus


def _optimizer(keys: Keys, unsupported: dict[str, str]) -> dict[str, Any]:
    name = keys.text("type")
    if name is None:
        keys.need("type", '"AdamW"')
    keys.section("params").as_dict()
    optimizer = _OPTIMIZERS.get(name.lower())
    if optimizer is not None:
        return optimizer
    if name.lower() not in _OTHER_OPTIMIZERS:
        keys.fail("type", f"there is no optimizer {name!r} in DeepSpeed; there is {', '.join(_OPTIMIZERS)}")
    unsupported["optimizer"] = f"optimizer.type: {name} is not modelled; name another with --optimizer"
    return {"name": "adamw"}


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    match aspect:
        case "batch" | "accumulation":
            return _batch_edits(keys, aspect, job)
        case "precision" if job.precision.weights_dtype == "fp32":
            half = job.precision.autocast_dtype
            names = {"bfloat16" if "bfloat16" in keys else "bf16": "bf16", "fp16": "fp16"}
            return {(name, "enabled"): half == dtype for name, dtype in names.items() if half == dtype or name in keys}
        case "optimizer" if "optimizer" in keys and len(job.optimizer) == 1:
            name = optimizer_named(_OPTIMIZERS, job.optimizer[0])
            if name is None:
                return {}
            arguments = keys.section("optimizer").section("params").as_dict()
            kept = {key: value for key, value in arguments.items() if key in _KEPT}
            return {("optimizer", "type"): _SPELLINGS[name], ("optimizer", "params"): kept}
    return {}


def _batch_edits(keys: Keys, aspect: str, job: Job) -> Edits:
    """The three that depend on each other are said together."""
    batch, passes = job.effective_sizes["batch"], job.accumulation
    micro, total, steps = "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"
    changes: Edits = {}
    if micro in keys or (aspect == "batch" and total not in keys):
        changes[(micro,)] = batch
    if total in keys:
        changes[(total,)] = batch * passes * job.gpus.count
    if steps in keys or aspect == "accumulation":
        changes[(steps,)] = passes
    return changes
