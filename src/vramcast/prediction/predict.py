"""`predict(job)`: what a training job takes on a card. torch is imported when it is called, not before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.base.access import CodeGate
from vramcast.base.errors import UsageError
from vramcast.base.factories import hush_torch, without_collections
from vramcast.base.units import parse_bytes
from vramcast.gpus import GpuSpec, all_gpus
from vramcast.gpus.detect import chosen_gpu
from vramcast.jobs.expressions import evaluate
from vramcast.jobs.load import LoadedJob, load_job
from vramcast.jobs.readers import Request
from vramcast.jobs.schema import Job
from vramcast.jobs.validation import make_job
from vramcast.memory import Prediction
from vramcast.memory import predict as predict_trace
from vramcast.memory.cards import card_fits
from vramcast.memory.parameters import parameter_tree
from vramcast.memory.shapes import with_containers
from vramcast.memory.stage_outputs import held_outputs_bytes
from vramcast.memory.stages import stages
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.step_time import job_step_time
from vramcast.trace import Note

if TYPE_CHECKING:
    from vramcast.prediction.tracing import TracedJob


_DTYPE_BYTES = {"fp64": 8, "int64": 8, "fp16": 2, "bf16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Bytes of a number; 4 for the others."""


def predict(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    steps: int = 3,
    *,
    allocator_conf: str | None = None,
    allow_code: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> JobPrediction:
    """What `job` (a Job, the same as a dict, or anything that `vramcast predict` takes) needs on `gpu`.

    `memory` is what PyTorch may reserve at most, instead of what the card has. `steps` optimizer steps are traced; the
    peak is mostly in the second or later. `allow_code`: a file that `job` names may name code to run.
    """
    if steps < 1:
        raise UsageError(f"steps: at least 1 is needed, not {steps}")
    loaded = as_loaded(job, allow_code=allow_code)
    job = loaded.job
    card, remark = choose_card(job, gpu)
    limit_bytes = limit_for(job, card, memory)
    conf = allocator_conf if allocator_conf is not None else job.allocator_conf

    progress("loading PyTorch")
    hush_torch()
    with without_collections():
        from vramcast.prediction.tracing import trace_job

    try:
        traced = trace_job(job, card, steps=steps, allocator_conf=conf, limit_bytes=limit_bytes, progress=progress)
    except UsageError as error:
        if not loaded.where or loaded.where in str(error):
            raise
        raise UsageError(f"{loaded.where}: {error}") from error
    progress("replaying")
    prediction = predict_traced(job, traced, card)
    more = (*loaded.notes, *traced.notes, *((Note("card", remark),) if remark else ()))
    return JobPrediction(
        job=job,
        prediction=dataclasses.replace(prediction, notes=(*prediction.notes, *more)),
        recognised_as=loaded.recognised_as,
        sizes=traced.sizes,
        parameters=parameter_tree(traced.parameters),
        stages=stages(traced.trace),
        output_shapes=with_containers(traced.output_shapes),
        input_shapes=traced.input_shapes,
        parameter_rows=traced.parameters,
        cards=card_fits(traced.trace, all_gpus(), known=prediction),
        held_outputs_bytes=held_outputs_bytes(traced.trace, traced.output_shapes),
        pinned_batch_bytes=_pinned_batch_bytes(job, traced.sizes) if job.pinned_batches else 0,
    )


def _pinned_batch_bytes(job: Job, sizes: Mapping[str, int]) -> int:
    """Every tensor of a batch takes a block of its own, a power of two."""
    total = 0
    for name, spec in job.inputs.items():
        if spec.made_on == "cpu":
            elements = prod(evaluate(size, sizes, f"inputs.{name}.shape") for size in spec.shape)
            total += 1 << (elements * _DTYPE_BYTES.get(spec.dtype, 4) - 1).bit_length()
    return total


def predict_traced(job: Job, traced: TracedJob, card: GpuSpec, *, time_copies: bool = True) -> Prediction:
    """What a traced job takes, and how long a step of it. `time_copies`: see `predict_step`."""
    gradient_bytes = sum(row.gradients_bytes for row in traced.parameters)
    time = job_step_time(job, traced.trace, card, gradient_bytes=gradient_bytes, time_copies=time_copies)
    return dataclasses.replace(predict_trace(traced.trace), time=time)


def as_loaded(job: Job | LoadedJob | Mapping[str, Any] | str | Path, *, allow_code: bool = False) -> LoadedJob:
    """Code that a file names is run only with `allow_code`; in a job that is written in Python it may be named."""
    if isinstance(job, LoadedJob):
        return job
    if isinstance(job, (str, Path)):
        return load_job(str(job), request=Request(gate=CodeGate(allowed=allow_code)))
    own = Request(gate=CodeGate(allowed=True))
    return LoadedJob(job=job if isinstance(job, Job) else make_job(job, "job"), request=own)


def choose_card(job: Job, gpu: str | GpuSpec | None) -> tuple[GpuSpec, str | None]:
    """The card asked for, the job's, the one in this machine, or a stated default."""
    return chosen_gpu(gpu if gpu is not None else job.target.gpu)


def limit_for(job: Job, gpu: GpuSpec, memory: str | int | None = None) -> int | None:
    """What PyTorch may reserve at most; None: what the card has."""
    if memory is None and job.target.fraction is not None:
        return int(gpu.total_memory_bytes * job.target.fraction)
    wanted = memory if memory is not None else job.target.memory
    limit = parse_bytes(wanted) if isinstance(wanted, str) else wanted
    if limit is not None and limit <= 0:
        raise UsageError(f"memory: a size must be above zero, not {limit}")
    return limit
