"""Trace configurations as `predict` does, several at a time where that is possible."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from vramcast.base.errors import VramcastError
from vramcast.base.factories import hush_torch, without_collections
from vramcast.base.processes import is_worker
from vramcast.features.advise.estimate import Corners, corners_of
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job
from vramcast.memory import Prediction
from vramcast.memory import predict as predict_trace
from vramcast.memory.parameters import ModuleParameters
from vramcast.prediction.predict import limit_for, predict_traced
from vramcast.timing import StepTime
from vramcast.trace import StepTrace

if TYPE_CHECKING:
    from vramcast.prediction.tracing import TracedJob

Progress = Callable[[str], None]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Traced:
    prediction: Prediction
    """With its trace."""
    parameters: tuple[ModuleParameters, ...]
    output_shapes: Mapping[str, tuple[int, ...]]
    time: StepTime | None
    """Time of a step; None where its ops are not known."""
    under: Mapping[str, Prediction] = field(default_factory=dict)
    """Setting of the allocator → the same run under it, without its trace."""
    corners: Corners | None = None
    """What estimates of other batches are made from."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A job to be traced, and the text that is shown while that goes on."""

    job: Job
    text: str
    _: KW_ONLY
    under: tuple[str, ...] = ()
    """Settings of the allocator that the run is also replayed under."""
    optional: str = ""
    """One more setting, replayed only where it could make the job fit."""
    steps: int | None = None
    """How many are traced, where that is not what the others have."""
    time_copies: bool = True
    """Whether copies between card and computer count in the time."""


_Task = tuple[Wish, GpuSpec, int]
"""What is traced, for which card, and for how many steps."""


class Runs:
    """Counts what it traces. With more than one worker, each trace runs in a fork of this process; forks are made
    before anything was traced here, since PyTorch's autograd does not survive a fork once it has run on a machine
    with a GPU."""

    def __init__(
        self,
        gpu: GpuSpec,
        *,
        steps: int,
        workers: int,
        progress: Progress,
        like: Job | None = None,
        wishes: Sequence[Wish] = (),
    ) -> None:
        """Import what the job `like` and the wishes need before forking, so that not every fork has to. `wishes` will
        probably be asked for: idle workers begin them while the job itself is predicted here."""
        self.n_traced = 0
        self._like, self._wishes = like, wishes
        self.workers = workers if sys.platform == "linux" else 1
        self._gpu, self._steps, self._progress = gpu, steps, progress
        self._pool: ProcessPoolExecutor | None = None
        self._expected: list[tuple[Job, Future[Traced | VramcastError]]] = []
        """Traces that were begun before anybody asked for them."""

    def __enter__(self) -> Self:
        self._progress("loading PyTorch")
        hush_torch()
        with without_collections():
            import vramcast.prediction.tracing  # noqa: F401  so that the forks need not import it
            from vramcast.jobs.building.preload import preload
        if self.workers > 1:
            import multiprocessing

            for job in (self._like, *(wish.job for wish in self._wishes)):
                if job is not None:
                    preload(job)
            gc.freeze()  # what was imported is not garbage, so the forks need not scan it
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self.workers, context, initializer=is_worker, initargs=(os.getpid(),))
            self._pool.submit(_nothing)  # forks all of them now, before anything is traced here
            for wish in self._wishes:
                task = (wish, self._gpu, self._steps)
                self._expected.append((wish.job, self._pool.submit(_answer, _trace, task)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        if kind is not None or not all(future.done() for _, future in self._expected):
            _kill_workers(self._pool)
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def trace(self, wishes: Sequence[Wish]) -> list[Traced | VramcastError]:
        """Traces in the order of the wishes; an error takes the place of the trace it prevented."""
        self.n_traced += len(wishes)
        tasks = [(wish, self._gpu, wish.steps or self._steps) for wish in wishes]
        if self._pool is None:
            answers = []
            for wish, task in zip(wishes, tasks, strict=True):
                self._progress(f"tracing {wish.text}")
                answers.append(_answer(_trace, task))
            return answers
        if wishes:
            self._progress(f"tracing {'; '.join(wish.text for wish in wishes)}")
        return self._at_once(self._pool, tasks)

    def _at_once(self, pool: ProcessPoolExecutor, tasks: Sequence[_Task]) -> list[Traced | VramcastError]:
        """A run that is also replayed under other settings comes back first, so that an idle process can take one of
        the replays."""
        waiting: list[Callable[[], Traced | VramcastError]] = []
        runs: dict[Future[TracedJob | VramcastError], int] = {}
        for place, task in enumerate(tasks):
            if task[0].under and not task[0].optional:
                run = pool.submit(_answer, _run, task)
                runs[run] = place
                waiting.append(run.result)  # type: ignore[arg-type]
            else:
                waiting.append(self._begun(task[0].job) or pool.submit(_answer, _trace, task).result)
        for run in as_completed(runs):
            traced = run.result()
            if not isinstance(traced, VramcastError):
                task = tasks[runs[run]]
                parts = (
                    pool.submit(_answer, _predict, task, traced),
                    pool.submit(_answer, _predict_under, traced.trace, task[0].under),
                )
                waiting[runs[run]] = partial(_together, *parts)
        return [wait() for wait in waiting]

    def _begun(self, job: Job) -> Callable[[], Traced | VramcastError] | None:
        return next((future.result for expected, future in self._expected if expected == job), None)

    def begin(self, wish: Wish) -> Callable[[], Traced | VramcastError]:
        """Start a trace beside others; the returned function waits for it."""
        self.n_traced += 1
        if self._pool is not None:
            self._progress(f"tracing {wish.text}")
        return self.start(partial(_answer, _trace), (wish, self._gpu, self._steps), f"tracing {wish.text}")

    def start(self, work: Callable[[T], R], task: T, text: str) -> Callable[[], R]:
        """Start work beside the traces; the returned function waits for it. Without workers it is done then."""
        if self._pool is None:

            def now() -> R:
                self._progress(text)
                return work(task)

            return now
        return self._pool.submit(work, task).result


def _nothing() -> None: ...


def _kill_workers(pool: ProcessPoolExecutor) -> None:
    """Kill workers whose results nobody waits for any more."""
    workers = list((pool._processes or {}).values())
    for worker in workers:
        with contextlib.suppress(ValueError, OSError):  # it has ended
            worker.kill()
    for worker in workers:
        worker.join()


def _together(
    run: Future[Traced | VramcastError], under: Future[dict[str, Prediction] | VramcastError]
) -> Traced | VramcastError:
    traced, others = run.result(), under.result()
    if isinstance(traced, VramcastError):
        return traced
    return others if isinstance(others, VramcastError) else replace(traced, under=others)


def _answer(work: Callable[..., R], *arguments: Any) -> R | VramcastError:
    """The result or the error, in a form that can be sent between processes."""
    try:
        return work(*arguments)
    except VramcastError as error:
        error.__traceback__ = error.__cause__ = error.__context__ = None
        return error


def _trace(task: _Task) -> Traced:
    """Trace as `predict` does, so that the figures are the same when the config is read back."""
    run = _run(task)
    traced = _predict(task, run)
    optional = task[0].optional
    also = (optional,) if optional and _would_fit_unfragmented(traced.prediction) else ()
    return replace(traced, under=_predict_under(run.trace, (*task[0].under, *also)))


def _run(task: _Task) -> TracedJob:
    from vramcast.prediction.tracing import trace_job

    wish, gpu, steps = task
    job = wish.job
    return trace_job(job, gpu, steps=steps, allocator_conf=job.allocator_conf, limit_bytes=limit_for(job, gpu))


def _predict(task: _Task, run: TracedJob) -> Traced:
    wish, gpu, _ = task
    with without_collections():
        prediction = predict_traced(wish.job, run, gpu, time_copies=wish.time_copies)
        corners = corners_of(run.trace)
    return Traced(prediction, run.parameters, dict(run.output_shapes), prediction.time, corners=corners)


def _predict_under(trace: StepTrace, settings: Sequence[str]) -> dict[str, Prediction]:
    with without_collections():
        return {conf: replace(predict_trace(trace, allocator_conf=conf), trace=None) for conf in settings}


def _would_fit_unfragmented(prediction: Prediction) -> bool:
    """Whether only fragmentation keeps it, margin included, from fitting."""
    least = prediction.margin.upper(prediction.peak_allocated_bytes + prediction.context_bytes)
    return least <= prediction.limit_bytes < prediction.with_margin_bytes
