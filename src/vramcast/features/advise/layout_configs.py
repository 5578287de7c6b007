"""A layout as a config of accelerate or torchtitan, which our own readers read back as the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from vramcast.base.errors import CannotPredict
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job


class HasChanges(Protocol):
    """Something that is suggested."""

    @property
    def changes(self) -> Mapping[str, Any]: ...


def layout_config(loaded: LoadedJob, changes: Mapping[str, Any], path: Path) -> str:
    """For `accelerate launch --config_file` (.yaml), or torchtitan (.toml)."""
    job = with_overrides(loaded.job, changes)
    text = torchtitan_config(job) if path.suffix == ".toml" else accelerate_config(job)
    if job.allocator_conf:
        text = f"# start it with PYTORCH_CUDA_ALLOC_CONF={job.allocator_conf}\n{text}"
    return text


def accelerate_config(job: Job) -> str:
    """Which layers are wrapped the model says itself; batch and passes are the training script's."""
    gpus = job.gpus
    if gpus.pipeline > 1:
        raise CannotPredict("accelerate has no pipelines for training: write a .toml, which torchtitan reads")
    half = job.precision.autocast_dtype
    precision = half if half != "none" else '"no"'
    checkpointed = job.checkpointing.scope == "all"
    sharded = gpus.effective_strategy in ("fsdp", "hsdp")
    kind = "FSDP" if sharded else "MULTI_GPU" if gpus.count > 1 else '"NO"'
    lines = [
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        f"mixed_precision: {precision}",
        f"num_machines: {gpus.nodes}",
        f"num_processes: {gpus.count}",
        "machine_rank: 0",
        "main_training_function: main",
    ]
    if job.accumulation > 1:
        lines.append(f"gradient_accumulation_steps: {job.accumulation}")
    if sharded:
        lines += [
            "fsdp_config:",
            "  fsdp_version: 2",
            f"  fsdp_reshard_after_forward: {'true' if gpus.reshard_after_forward else 'false'}",
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            f"  fsdp_activation_checkpointing: {'true' if checkpointed else 'false'}",
            "  fsdp_cpu_ram_efficient_loading: true",
            "  fsdp_offload_params: false",
            "  fsdp_state_dict_type: SHARDED_STATE_DICT",
        ]
    elif checkpointed:
        lines.insert(0, "# and gradient_checkpointing in the training script")
    degrees = {
        "dp_replicate_size": gpus.copies if sharded else gpus.data,
        "dp_shard_size": gpus.data // gpus.copies if sharded else 1,
        "tp_size": gpus.tensor,
    }
    if gpus.tensor > 1 or (sharded and gpus.copies > 1):
        lines.append("parallelism_config:")
        lines += [f"  parallelism_config_{name}: {size}" for name, size in degrees.items()]
    return "\n".join(lines) + "\n"


def torchtitan_config(job: Job) -> str:
    """The model is named with --model; torchtitan's own flavors are llama3's."""
    gpus = job.gpus
    sharded = gpus.effective_strategy in ("fsdp", "hsdp")
    batch = job.effective_sizes["batch"]
    sections: dict[str, dict[str, Any]] = {
        "training": {
            "local_batch_size": batch * (job.accumulation if gpus.pipeline > 1 else 1),
            "global_batch_size": batch * job.accumulation * gpus.data,
            **({"seq_len": job.sizes["sequence"]} if "sequence" in job.sizes else {}),
            "mixed_precision_param": "bfloat16" if job.precision.autocast_dtype == "bf16" else "float32",
            "max_norm": job.gradient_clipping or 0.0,
        },
        "parallelism": {
            "data_parallel_replicate_degree": gpus.copies if sharded else gpus.data,
            "data_parallel_shard_degree": gpus.data // gpus.copies if sharded else 1,
            "fsdp_reshard_after_forward": "default" if gpus.reshard_after_forward else "never",
            "tensor_parallel_degree": gpus.tensor,
            "pipeline_parallel_degree": gpus.pipeline,
            **({"pipeline_parallel_microbatch_size": batch} if gpus.pipeline > 1 else {}),
        },
        "activation_checkpoint": {"mode": "full" if job.checkpointing.scope == "all" else "none"},
        "optimizer": {"name": "AdamW", "implementation": _implementation(job)},
    }
    lines = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _implementation(job: Job) -> str:
    arguments = job.optimizer[0].arguments
    if len(job.optimizer) != 1 or job.optimizer[0].name.lower() != "adamw":
        raise CannotPredict("torchtitan trains with Adam or AdamW: write an accelerate config (.yaml) instead")
    if arguments.get("fused"):
        return "fused"
    return "for-loop" if arguments.get("foreach") is False else "foreach"


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
