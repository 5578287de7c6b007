"""How long a step of a job takes: the time of its trace, and what only the job knows (cards, passes, data)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job
from vramcast.jobs.schema.training import MOST_ACCUMULATED
from vramcast.timing import StepTime, Sync, Throughput, predict_step, throughput
from vramcast.trace import StepTrace


def job_step_time(
    job: Job,
    trace: StepTrace,
    gpu: GpuSpec,
    *,
    gradient_bytes: int = 0,
    keep_rows: bool = False,
    time_copies: bool = True,
) -> StepTime | None:
    """The time of one step of `job`, of which `trace` is a run; None where it is not known. `time_copies`: see
    `predict_step`."""
    is_training = job.task == "training" and job.script is None and job.step is None
    further = max(0, job.accumulation - MOST_ACCUMULATED) if is_training else 0
    sync = None
    if job.gpus.count > 1 and not job.gpus.divides_model and job.task == "training" and gradient_bytes:
        bucket_bytes = int(job.gpus.bucket_cap_mb * 2**20)
        sync = Sync(cards=job.gpus.count, gradient_bytes=gradient_bytes, bucket_bytes=bucket_bytes)

    def predict(data_seconds: float) -> StepTime | None:
        found = predict_step(
            trace, gpu, further_passes=further, sync=sync, data_seconds=data_seconds, keep_rows=keep_rows,
            time_copies=time_copies,
        )  # fmt: skip
        return found and found.with_bubble(bubble_seconds(job, found))

    loading = loading_seconds(job)
    if not loading:
        return predict(0.0)
    assert job.dataset is not None
    if not job.dataset.workers:
        return predict(loading)
    # Workers load the next batch meanwhile: the loop waits only where they are slower than the step.
    alone = predict(0.0)
    if alone is None or alone.seconds >= loading:
        return alone
    return predict(loading - alone.seconds)


def bubble_seconds(job: Job, time: StepTime) -> float:
    """1F1B: while the pipeline fills and drains, a stage waits as long as one microbatch takes on each other stage,
    all stages taken to be as fast as this one."""
    passes = time.phases.get("forward", 0.0) + time.phases.get("backward", 0.0)
    return (job.gpus.pipeline - 1) * passes / job.passes


def loading_seconds(job: Job) -> float:
    """What it takes to load the samples of one step on one card, by one process or by several workers."""
    dataset = job.dataset
    if dataset is None or dataset.seconds_per_sample is None:
        return 0.0
    samples = job.effective_sizes["batch"] * job.accumulation
    return samples * dataset.seconds_per_sample / max(1, dataset.workers)


def steps_per_epoch(job: Job) -> int | None:
    return None if job.dataset is None else math.ceil(job.dataset.size / job.samples_per_step)


def job_throughput(job: Job, time: StepTime | None, sizes: Mapping[str, int]) -> Throughput | None:
    """Of all cards; `sizes` are those of the run, assumed ones too."""
    if time is None:
        return None
    makes_images = any(one.is_trained and one.diffusers for one in job.components.values())
    return throughput(
        time.seconds,
        samples_per_step=job.samples_per_step,
        tokens_per_sample=None if makes_images else sizes.get("sequence"),  # words of a caption are not the work done
        steps_per_epoch=steps_per_epoch(job),
        epochs=None if job.dataset is None else job.dataset.epochs,
    )
