"""Which jobs are compiled as they are described."""

from __future__ import annotations

from vramcast.jobs.schema import Job


def why_not_compiled(job: Job) -> str | None:
    """What about the job keeps `torch_compile` from being followed; None where nothing does."""
    if job.gpus.effective_strategy != "none":
        return (
            f"compiled code on several GPUs ({job.gpus.effective_strategy}) is not modelled in a job; a script is run"
        )
    if job.offload.changed_fields:
        return "compiled code with offloading is not modelled in a job"
    return None
