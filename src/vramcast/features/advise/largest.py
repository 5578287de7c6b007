"""The largest batch, sequence, resolution and clip that fit, all else as it is; each was traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vramcast.base.errors import VramcastError
from vramcast.features.advise.result import LargestSize
from vramcast.features.advise.runs import Runs, Traced
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job
from vramcast.prediction.axes import AXES, axes
from vramcast.prediction.predict import limit_for
from vramcast.prediction.scaling import Largest, Sizes
from vramcast.trace import StepTrace


@dataclass(frozen=True, slots=True)
class _Task:
    job: Job
    gpu: GpuSpec
    steps: int
    axis: str
    known: tuple[tuple[int, StepTrace], ...]
    """Traces of the job at numbers of the axis."""
    near: int | None
    """What is thought to be the answer."""


@dataclass(frozen=True, slots=True)
class LargestResult:
    """The largest size of an axis, and how many runs it took to find."""

    sizes: LargestSize | None
    traces: int
    problem: str = ""


def growing_axes(job: Job, keep: Iterable[str], *, all_of_them: bool) -> list[str]:
    """The axes along which the job may grow."""
    if job.script is not None or (job.step is not None and "batch" not in job.sizes):
        return []
    there = axes(job) if job.components else {"batch": None}
    return [name for name in AXES if name in there and name not in keep and (all_of_them or name == "batch")]


def start(
    runs: Runs,
    job: Job,
    gpu: GpuSpec,
    steps: int,
    axis: str,
    known: Iterable[tuple[int, Traced]],
    near: int | None = None,
    of: str = "",
) -> Callable[[], LargestResult]:
    """Start looking for the largest size beside other work; the returned function waits for the answer."""
    traces = tuple((number, traced.prediction.trace) for number, traced in known if traced.prediction.trace is not None)
    task = _Task(job, gpu, steps, axis, traces, near)
    wait = runs.start(_look, task, f"looking for the largest {axis}")

    def answer() -> LargestResult:
        result = wait()
        if isinstance(result, VramcastError):
            return LargestResult(None, 0, f"largest {axis}: {result}")
        runs.n_traced += result.traces
        sizes = axes(job)[axis].sizes(result.number) if result.number else {}
        return LargestResult(
            LargestSize(axis=axis, sizes=sizes, device_bytes=result.device_bytes, of=of), result.traces
        )

    return answer


def asked_number(job: Job, axis: str) -> int:
    return axes(job)[axis].asked


def _look(task: _Task) -> Largest | VramcastError:
    try:
        sizes = Sizes(task.job, axes(task.job)[task.axis], steps=task.steps)
        for number, trace in task.known:
            sizes.add(number, task.gpu, trace)
        limit_bytes = limit_for(task.job, task.gpu)
        return sizes.largest(task.gpu, limit_bytes=limit_bytes, near=task.near, traced_beyond=task.axis != "batch")
    except VramcastError as error:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return error
