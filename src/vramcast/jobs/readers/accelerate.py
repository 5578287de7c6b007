"""An accelerate config: how many processes, mixed precision, and how they share the work. It names no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.jobs.readers import Edits, Part, Reading, Request, combine, deepspeed
from vramcast.jobs.readers.documents import beside, peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "accelerate config"

_CERTAIN = ("distributed_type", "compute_environment")
_KINDS = (
    "NO",
    "MULTI_GPU",
    "FSDP",
    "DEEPSPEED",
    "MEGATRON_LM",
    "TP",
    "MULTI_CPU",
    "XLA",
    "TPU",
    "MULTI_NPU",
    "MULTI_XPU",
)
_ON_GPUS = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "TP")
_OTHER_DEGREES = ("cp_size", "sp_size")
"""What a job cannot say."""
_KNOWN = frozenset((
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes", "machine_rank",
    "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend", "same_network",
    "main_training_function", "enable_cpu_affinity", "fp8_config", "deepspeed_config", "fsdp_config",
    "parallelism_config", "megatron_lm_config", "mpirun_config", "downcast_bf16", "tpu_name", "tpu_zone",
    "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env", "dynamo_config",
    "dynamo_backend", "fp16", "ipex_config", "gradient_accumulation_steps", "tpu_config",
))  # fmt: skip
_FSDP_WHOLE = ("NO_SHARD", "3")
_FSDP_KEPT = ("SHARD_GRAD_OP", "2")


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml", ".json")
    return any(name in keys for name in _CERTAIN) or ("num_processes" in keys and "mixed_precision" in keys)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    keys = Keys.of(read_document(path), str(path))
    keys.only(_KNOWN)
    return part_from(keys, path.parent, request)


def part_from(keys: Keys, folder: Path, request: Request) -> Part:
    notes: list[Note] = []
    assumed: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    kind = keys.text("distributed_type", _KINDS) if type(keys.take("distributed_type")) is not bool else "NO"
    gpus: dict[str, Any] = {"count": keys.whole("num_processes", most=65_536) or 1}
    if kind is not None and kind not in _ON_GPUS:
        unsupported["gpus"] = f"distributed_type: {kind} is not modelled; --set gpus.strategy=ddp predicts without it"
    data: dict[str, Any] = {}
    preset = _preset(keys, unsupported)
    if preset:
        data["precision"] = {"preset": preset}
    passes = keys.whole("gradient_accumulation_steps")
    if passes:
        data["accumulation"] = passes
    if kind == "FSDP":
        gpus |= _fsdp(keys.section("fsdp_config"), data)
    elif kind == "DEEPSPEED":
        nested = _deepspeed(keys.section("deepspeed_config"), folder, request, data, gpus)
        if nested is not None:
            data = combine.merge(dict(nested.data), data)
            gpus = {**nested.data.get("gpus", {}), **gpus}
            notes, assumed = [*notes, *nested.notes], {**assumed, **nested.assumed}
            unsupported |= nested.unsupported
    gpus |= _degrees(keys.section("parallelism_config"), kind, unsupported)
    dynamo = keys.section("dynamo_config")
    if str(dynamo.take("dynamo_backend") or keys.take("dynamo_backend") or "NO").upper() != "NO":
        data["torch_compile"] = True
    dynamo.as_dict()
    keys.ignore("use_cpu")
    notes += unused_note(keys.unused(_KNOWN), keys.where)
    data = {**data, "gpus": gpus}
    return Part(
        data=data, recognised_as=NAME, where=keys.where, notes=tuple(notes), assumed=assumed, unsupported=unsupported
    )


def _preset(keys: Keys, unsupported: dict[str, str]) -> str | None:
    value = keys.take("mixed_precision")
    if value is False:  # YAML reads a bare no as false
        return "fp32"
    name = keys.text("mixed_precision", ("no", "fp16", "bf16", "fp8"))
    if name is None and keys.flag("fp16"):
        return "fp16"
    if name == "fp8":
        unsupported["precision"] = "mixed_precision: fp8 is not modelled; --precision bf16 predicts with that instead"
        return "bf16"
    return "fp32" if name == "no" else name


def _fsdp(keys: Keys, data: dict[str, Any]) -> dict[str, Any]:
    strategy = str(keys.take("fsdp_sharding_strategy") or "FULL_SHARD")
    reshard = keys.take("fsdp_reshard_after_forward")
    wrap = keys.take("fsdp_transformer_layer_cls_to_wrap")
    if keys.flag("fsdp_activation_checkpointing"):
        data["checkpointing"] = {"scope": "all"}
    if strategy in _FSDP_WHOLE:
        return {"strategy": "ddp"}
    gpus: dict[str, Any] = {"strategy": "fsdp"}
    gpus["reshard_after_forward"] = strategy not in _FSDP_KEPT and reshard not in (False, "SHARD_GRAD_OP", "NO_SHARD")
    if keys.flag("fsdp_offload_params"):
        gpus["offload_parameters"] = True
    if wrap:
        names = wrap if isinstance(wrap, list) else str(wrap).split(",")
        gpus["wrap"] = [str(name).strip() for name in names]
    return gpus


def _degrees(keys: Keys, kind: str | None, unsupported: dict[str, str]) -> dict[str, Any]:
    """Tensor parallel, and how many copies of the model there are."""
    prefix = "parallelism_config_"
    for name in _OTHER_DEGREES:
        if (keys.whole(prefix + name) or 1) > 1:
            unsupported["gpus"] = (
                f"{keys.name_of(prefix + name)} above 1 cannot be said by a job; `vramcast run accelerate launch ...` "
                "runs a program that does, and --set gpus.strategy=ddp predicts without it"
            )
    tensor, copies = (keys.whole(f"{prefix}{name}_size") or 1 for name in ("tp", "dp_replicate"))
    shards = keys.whole(f"{prefix}dp_shard_size") or 1
    keys.as_dict()
    gpus: dict[str, Any] = {"tensor": tensor} if tensor > 1 else {}
    if kind == "TP" and tensor == 1:
        unsupported["gpus"] = "distributed_type: TP without parallelism_config_tp_size does not say over how many GPUs"
    if copies > 1 and shards > 1:
        gpus |= {"strategy": "hsdp", "replicas": copies}
    elif shards > 1 and kind != "DEEPSPEED":  # which divides over all cards by itself
        gpus["strategy"] = "fsdp"
    return gpus


def _deepspeed(keys: Keys, folder: Path, request: Request, data: dict[str, Any], gpus: dict[str, Any]) -> Part | None:
    file = keys.text("deepspeed_config_file")
    if file is not None:
        keys.as_dict()
        return deepspeed.read_part(beside(file, folder), request)
    gpus |= {"strategy": "deepspeed", "zero_stage": keys.whole("zero_stage", least=0, most=3) or 0}
    for field, name in {
        "offload_optimizer": "offload_optimizer_device",
        "offload_parameters": "offload_param_device",
    }.items():
        if keys.text(name, ("none", "cpu", "nvme")) not in (None, "none"):
            gpus[field] = True
    passes, norm = keys.whole("gradient_accumulation_steps"), keys.number("gradient_clipping")
    if passes:
        data["accumulation"] = passes
    if norm:
        data["gradient_clipping"] = norm
    return None


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    kind = keys.take("distributed_type")
    match aspect:
        case "precision":
            half = job.precision.autocast_dtype
            return {("mixed_precision",): "no" if half == "none" else half}
        case "accumulation":
            places = (("deepspeed_config", "gradient_accumulation_steps"), ("gradient_accumulation_steps",))
            place = next((place for place in places if keys.says(place)), places[0] if kind == "DEEPSPEED" else None)
            return {} if place is None else {place: job.accumulation}
        case "checkpointing" if kind == "FSDP" and job.checkpointing.scope != "modules":
            return {("fsdp_config", "fsdp_activation_checkpointing"): job.checkpointing.scope == "all"}
        case "gpus":
            return {("num_processes",): job.gpus.count}
    return {}


def nested_files(keys: Keys, folder: Path) -> list[Path]:
    """Configs that it names, which say a part too."""
    file = keys.section("deepspeed_config").take("deepspeed_config_file")
    return [beside(file, folder)] if isinstance(file, str) else []
