"""A model that is divided over cards: FSDP2, HSDP and tensor parallel, by PyTorch's own code.

The model is made on the meta device, divided, and gets its memory then, as large models are loaded. So no card ever
holds it whole.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import defaultdict
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.building.build import build_component
from vramcast.jobs.building.built import Built
from vramcast.jobs.building.checkpointing import longest_stack
from vramcast.jobs.schema import Gpus, Job
from vramcast.jobs.stage_layers import cut_component
from vramcast.jobs.training.dtypes import DTYPES
from vramcast.jobs.training.stages import Stage

DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")
"""From the ranks that are farthest apart to those that are neighbours, as torchtitan has them."""


class Layout:
    """The mesh of all ranks, of which this process is one."""

    def __init__(self, gpus: Gpus) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("nccl", world_size=gpus.count, rank=gpus.rank or 0)
        self.gpus = gpus
        sizes = (gpus.pipeline, gpus.copies, gpus.data // gpus.copies, gpus.tensor)
        self.mesh: Any = init_device_mesh("cuda", sizes, mesh_dim_names=DIMENSIONS)

    @property
    def stage(self) -> int:
        return int(self.mesh["pipeline"].get_local_rank())

    def divide(self, module: nn.Module, job: Job) -> nn.Module:
        """`module`, which is on the meta device, with its part of the memory."""
        if self.gpus.tensor > 1:
            split_layers(module, self.mesh["tensor"])
        return self.give_memory(module, job)

    def give_memory(self, module: nn.Module, job: Job) -> nn.Module:
        if self.gpus.data > 1:
            self._shard_or_copy(module, job)
        return with_memory(module)

    def _shard_or_copy(self, module: nn.Module, job: Job) -> None:
        gpus = self.gpus
        if gpus.effective_strategy == "ddp":
            raise CannotPredict(
                "gpus: DDP over a model that is split by tensor or pipeline parallel is not modelled; "
                "write strategy: fsdp, or hsdp with replicas"
            )
        fsdp: Any = importlib.import_module("torch.distributed.fsdp")
        mesh = self.mesh["shard"] if gpus.copies == 1 else self.mesh["replicate", "shard"]
        # The stages of a pipeline keep their weights from the first microbatch to the last, as torchtitan does.
        options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": gpus.reshard_after_forward}
        if gpus.pipeline > 1:
            options["reshard_after_forward"] = False
        half = job.precision.autocast_dtype
        if half != "none":
            options["mp_policy"] = fsdp.MixedPrecisionPolicy(
                param_dtype=DTYPES[half], reduce_dtype=DTYPES[gpus.reduce_dtype]
            )
        for unit in units(module, gpus.wrap):
            fsdp.fully_shard(unit, **options)
        fsdp.fully_shard(module, **options)


def build_part(name: str, job: Job, layout: Layout) -> Built:
    """A component with what this rank holds of it. One that is not trained in the step is whole on every card."""
    component = job.components[name]
    if not (component.is_trained and component.call):
        return build_component(name, job)
    stage, stages = layout.stage, layout.gpus.pipeline
    if stages == 1:
        built = build_component(name, job, on_meta=True)
        return dataclasses.replace(built, module=layout.divide(built.module, job))
    cut = cut_component(component, stage, stages)
    built = build_component(name, job.model_copy(update={"components": {name: cut}}), on_meta=True)
    if layout.gpus.tensor > 1:
        split_layers(built.module, layout.mesh["tensor"])
    part = Stage(built.module, job, first=stage == 0, last=stage == stages - 1)
    return dataclasses.replace(built, module=layout.give_memory(part, job))


def in_words(job: Job) -> str:
    """What was assumed of a job on several cards."""
    gpus = job.gpus
    degrees = {
        "pipeline": gpus.pipeline,
        "replicate": gpus.copies,
        "shard": gpus.data // gpus.copies,
        "tensor": gpus.tensor,
    }
    mesh = " x ".join(f"{name} {size}" for name, size in degrees.items() if size > 1)
    how = "; sharded by FSDP2" if gpus.effective_strategy in ("fsdp", "hsdp") else ""
    return f"{gpus.count:,} GPUs ({mesh}){how}; weights are made on the meta device and divided before they take memory"


def units(module: nn.Module, wrap: list[str]) -> list[nn.Module]:
    """What FSDP gathers at a time: modules of the classes that are named, or that the model names, or its blocks."""
    names = set(wrap or getattr(module, "_no_split_modules", None) or ())
    found = [child for child in module.modules() if type(child).__name__ in names and child is not module]
    if wrap and not found:
        classes = sorted({type(child).__name__ for child in module.modules()})
        raise UsageError(f"gpus.wrap: the model has none of {', '.join(wrap)}; its classes are {', '.join(classes)}")
    return found or longest_stack(module)


def split_layers(module: nn.Module, mesh: Any) -> None:
    """Tensor parallel, by the plan that the model's class brings."""
    parallel: Any = importlib.import_module("torch.distributed.tensor.parallel")
    tensor: Any = importlib.import_module("torch.distributed.tensor")
    styles = {
        "colwise": parallel.ColwiseParallel,
        "rowwise": parallel.RowwiseParallel,
        "colwise_rep": lambda: parallel.ColwiseParallel(output_layouts=tensor.Replicate()),
        "colwise_gather_output": lambda: parallel.ColwiseParallel(output_layouts=tensor.Replicate()),
    }
    plan: dict[str, str] = dict(getattr(module, "_tp_plan", None) or {})
    if not plan:
        raise CannotPredict(
            f"gpus.tensor: {type(module).__name__} has no tensor-parallel plan; models of transformers such as Llama "
            "have one. A program that splits its layers itself is run with `vramcast run --gpus N`"
        )
    unknown = sorted({style for style in plan.values() if style not in styles})
    if unknown:
        raise CannotPredict(
            f"gpus.tensor: the plan of {type(module).__name__} has layers of the kind {', '.join(unknown)}, which are "
            "not modelled"
        )
    parallel.parallelize_module(module, mesh, {name: styles[style]() for name, style in plan.items()})


def with_memory(module: nn.Module) -> nn.Module:
    """Bring it from the meta device to the card; parameters that two modules share stay shared."""
    shared: defaultdict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                shared[id(parameter)].append((owner, name))
    module.to_empty(device="cuda")
    for (owner, name), *others in shared.values():
        for other, other_name in others:
            other._parameters[other_name] = owner._parameters[name]
    return module
