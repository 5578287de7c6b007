"""Several GPUs: what is modelled, and what is not and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vramcast.base.errors import CannotPredict
from vramcast.jobs.schema import Job
from vramcast.jobs.training.zero import check_zero
from vramcast.trace import Note


def check_supported(job: Job) -> None:
    """CannotPredict for what would be counted wrong, rather than a number that leaves it out."""
    gpus = job.gpus
    instead = "--set gpus.strategy=ddp predicts what one GPU takes without it"
    if gpus.divides_model:
        _check_divided(job)
    if gpus.offload_optimizer:
        raise CannotPredict(
            "gpus.offload_optimizer: the buffers of ZeRO's and FSDP's offload are not modelled; torchao's optimizer on "
            "the CPU is: --set gpus.offload_optimizer=false --set offload.optimizer=true"
        )
    if gpus.offload_parameters:
        raise CannotPredict(
            "gpus.offload_parameters: trained weights in the computer's memory are not modelled; write false, and "
            "offload: model for components that are not trained"
        )
    if gpus.runs_zero:
        check_zero(job)
    elif gpus.effective_strategy == "deepspeed" and job.precision.autocast_dtype != "none":
        half = job.precision.autocast_dtype
        raise CannotPredict(
            f"gpus.strategy: DeepSpeed keeps {half} weights and an fp32 copy of them in its optimizer, which is not "
            f"modelled yet; {instead}"
        )


def _check_divided(job: Job) -> None:
    """What FSDP, tensor and pipeline parallel do not go together with here."""
    if job.task != "training" or job.step is not None or job.script is not None:
        raise CannotPredict(
            "gpus: only training of components is divided over cards; a program that does it itself is run with "
            "`vramcast run --gpus N`"
        )
    if job.ema is not None and job.ema.enabled:
        raise CannotPredict("ema: an average of sharded weights is not modelled; leave it out")
    if job.gpus.pipeline > 1 and (job.precision.uses_grad_scaler or len(job.components) > 1 or job.evaluation):
        raise CannotPredict(
            "gpus.pipeline: a pipeline of one model, without GradScaler and evaluation, is modelled; leave these out"
        )


def method_of(module: nn.Module, name: str) -> Callable[..., Any] | None:
    """A method of a module; under DDP it is called through the wrapper's forward, which prepares the buckets."""
    if not isinstance(module, nn.parallel.DistributedDataParallel):
        return getattr(module, name, None)
    inner: Any = module.module
    method = getattr(inner, name, None)
    if method is None:
        return None

    def through_wrapper(*positional: Any, **named: Any) -> Any:
        forward = inner.forward

        def redirected(*inner_positional: Any, **inner_named: Any) -> Any:
            inner.forward = forward  # the method may call the module itself
            return method(*inner_positional, **inner_named)

        inner.forward = redirected
        try:
            return module(*positional, **named)
        finally:
            inner.forward = forward

    return through_wrapper


def data_parallel(job: Job, modules: dict[str, nn.Module], notes: list[Note]) -> dict[str, nn.Module]:
    """The trained components under DistributedDataParallel, with their gradient buckets."""
    if job.gpus.effective_strategy == "none" or job.gpus.divides_model or job.gpus.runs_zero:
        return modules
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl", world_size=1, rank=0)
    wrapped = dict(modules)
    for name, module in modules.items():
        if job.components[name].is_trained and job.components[name].call:
            wrapped[name] = nn.parallel.DistributedDataParallel(
                module,
                device_ids=[0],
                bucket_cap_mb=job.gpus.bucket_cap_mb,
                find_unused_parameters=job.gpus.find_unused_parameters,
                gradient_as_bucket_view=job.gpus.gradient_as_bucket_view,
                static_graph=job.gpus.static_graph,
            )
    if job.gpus.count > 1:
        text = f"one of {job.gpus.count} GPUs; NCCL's own buffers, a few hundred MiB outside PyTorch, are not counted"
        notes.append(Note("several GPUs", text))
    return wrapped
