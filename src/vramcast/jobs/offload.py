"""What an offload in a job goes together with: the rules of the libraries that do it, before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramcast.jobs.schema import Job

_TRAINED = "its weights are trained, so they stay on the card; trained weights on the CPU (FSDP's, ZeRO-3's) are not "


def check_offload(job: Job) -> None:
    """ValueError that names what contradicts."""
    for name, component in job.components.items():
        if component.offload in (None, "none") or job.task != "training":
            continue
        if component.is_trained:
            raise ValueError(f"components.{name}.offload: {_TRAINED}modelled: leave it out")
        if not component.runs_without_grad:
            raise ValueError(f"components.{name}.offload: the backward pass goes through it, so it stays on the card")
    problem = optimizer_problem(job)
    if job.offload.offloads_optimizer and job.task == "training" and problem is not None:
        raise ValueError(f"offload.optimizer: {problem}")


def optimizer_problem(job: Job) -> str | None:
    """Why torchao's CPUOffloadOptimizer would not do for this job, gradients included."""
    if job.gpus.effective_strategy != "none":
        return "torchao's CPUOffloadOptimizer is for one GPU without DDP"
    if job.gradient_clipping is not None:
        return "gradients are on their way to the CPU before they can be clipped: leave gradient_clipping out"
    if job.precision.uses_grad_scaler:
        return "a GradScaler does not go with torchao's CPUOffloadOptimizer: take bf16, or grad_scaler: false"
    if job.offload.gradients and job.accumulation > 1:
        return "with `gradients` nothing is left on the card to accumulate: write accumulation: 1, or leave it out"
    if not job.set_to_none:
        return "torchao's CPUOffloadOptimizer sets gradients to none: leave set_to_none out"
    return None
