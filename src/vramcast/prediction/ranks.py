"""Every rank of a job that is another program: one of each pipeline stage, and the one that takes the most is shown.

The other ranks of a stage hold the same or less: shards are dealt out from the first, so that the last may be smaller.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from vramcast.base.errors import VramcastError
from vramcast.base.factories import hush_torch, without_collections
from vramcast.base.processes import is_worker
from vramcast.base.units import format_gib
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Gpus, Job
from vramcast.jobs.stage_layers import layer_count, layers_of
from vramcast.memory import Prediction
from vramcast.memory import predict as predict_trace
from vramcast.memory.schedules import one_forward_one_backward, rescheduled
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import predict
from vramcast.trace import Note

_STEPS = 2
"""Steps that are traced of a stage: the second has optimizer state, and every later one is like it."""


@dataclass(frozen=True, slots=True)
class RankFigures:
    rank: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool

    def to_document(self) -> dict[str, int | bool]:
        return dataclasses.asdict(self)


def distinct_ranks(gpus: Gpus) -> tuple[int, ...]:
    """The first rank of each pipeline stage; the one that the job names, where it names one."""
    if gpus.rank is not None or gpus.pipeline == 1:
        return (gpus.rank or 0,)
    return tuple(range(0, gpus.count, gpus.count // gpus.pipeline))


def predict_distinct_ranks(
    loaded: LoadedJob,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    steps: int = 3,
    *,
    allocator_conf: str | None = None,
    workers: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[JobPrediction, tuple[RankFigures, ...]]:
    """The rank that reserves the most, and the figures of each. `workers`: processes that run ranks at once."""
    ranks = distinct_ranks(loaded.job.gpus)
    if len(ranks) == 1:
        found = predict(loaded, gpu, memory, steps, allocator_conf=allocator_conf, progress=progress)
        return found, (_figures(ranks[0], found.prediction),)
    hush_torch()
    with without_collections():
        from vramcast.jobs.building.preload import preload
    preload(loaded.job)
    groups = equal_stages(loaded.job)
    each = loaded.job.gpus.count // loaded.job.gpus.pipeline
    tasks = [
        _Task(_as_rank(loaded, group[0] * each), tuple(group[1:]), gpu, memory, min(steps, _STEPS), allocator_conf)
        for group in groups
    ]
    largest: JobPrediction | None = None
    figures: list[RankFigures] = []
    for done, answer in enumerate(_run(tasks, workers), 1):
        if isinstance(answer, VramcastError):
            raise answer
        progress(f"{done} of {len(groups)} kinds of stages")
        figures += answer.figures
        if largest is None or answer.shown.peak_reserved_bytes > largest.peak_reserved_bytes:
            largest = answer.shown
    assert largest is not None
    figures.sort(key=lambda figure: figure.rank)
    top = max(figures, key=lambda figure: figure.peak_reserved_bytes)
    if top.peak_reserved_bytes > largest.peak_reserved_bytes:  # a stage whose passes were put in order; now it is run
        largest = predict(_as_rank(loaded, top.rank), gpu, memory, min(steps, _STEPS), allocator_conf=allocator_conf)
    note = Note("ranks", _in_words(figures, largest.job.gpus.rank or 0))
    prediction = dataclasses.replace(largest.prediction, notes=(*largest.prediction.notes, note))
    return dataclasses.replace(largest, prediction=prediction), tuple(figures)


def equal_stages(job: Job) -> list[list[int]]:
    """Stages that run the same passes, in another order only: those between the first and the last with as many
    layers."""
    stages = job.gpus.pipeline
    layers = layer_count(next(iter(job.components.values())))  # a pipeline has one component
    alike: dict[tuple[int, bool, bool], list[int]] = {}
    for stage in range(stages):
        key = len(layers_of(stage, stages, layers)), stage == 0, stage == stages - 1
        alike.setdefault(key, []).append(stage)
    return list(alike.values())


def _as_rank(loaded: LoadedJob, rank: int) -> LoadedJob:
    return dataclasses.replace(loaded, job=with_overrides(loaded.job, {"gpus.rank": rank}))


@dataclass(frozen=True, slots=True)
class _Task:
    loaded: LoadedJob
    others: tuple[int, ...]
    """Further stages that run the same passes."""
    gpu: str | GpuSpec | None
    memory: str | int | None
    steps: int
    allocator_conf: str | None


@dataclass(frozen=True, slots=True)
class _Answer:
    shown: JobPrediction
    figures: list[RankFigures]


def _run(tasks: list[_Task], workers: int) -> Iterator[_Answer | VramcastError]:
    if workers < 2 or sys.platform != "linux":
        yield from map(_predict, tasks)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, initializer=is_worker, initargs=(os.getpid(),)) as pool:
        yield from pool.map(_predict, tasks)


def _predict(task: _Task) -> _Answer | VramcastError:
    conf, gpus = task.allocator_conf, task.loaded.job.gpus
    each = gpus.count // gpus.pipeline
    try:
        shown = predict(task.loaded, task.gpu, task.memory, task.steps, allocator_conf=conf)
        figures = [_figures(gpus.rank or 0, shown.prediction)]
        for stage in task.others:
            order = one_forward_one_backward(stage, gpus.pipeline, task.loaded.job.passes)
            trace = None if shown.trace is None else rescheduled(shown.trace, order)
            if trace is not None:
                found = predict_trace(trace)
            else:
                other = _as_rank(task.loaded, stage * each)
                found = predict(other, task.gpu, task.memory, task.steps, allocator_conf=conf).prediction
            figures.append(_figures(stage * each, found))
        return _Answer(shown, figures)
    except VramcastError as error:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return error


def _figures(rank: int, found: Prediction) -> RankFigures:
    return RankFigures(rank, found.peak_allocated_bytes, found.peak_reserved_bytes, found.fits)


def _in_words(figures: list[RankFigures], shown: int) -> str:
    least = min(figures, key=lambda each: each.peak_reserved_bytes)
    most = max(figures, key=lambda each: each.peak_reserved_bytes)
    return (
        f"{len(figures)} pipeline stages, a rank of each; reserved at the peak: "
        f"{format_gib(least.peak_reserved_bytes)} (rank {least.rank}) to {format_gib(most.peak_reserved_bytes)} "
        f"(rank {most.rank}); shown is rank {shown}. --json lists all"
    )
