"""`check(job)`: does it fit what is free here, or a named card? torch is imported when it is called, not before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.shown import Shown
from vramcast.base.units import format_gib, format_size, parse_bytes
from vramcast.features.advise.config import card_options
from vramcast.features.advise.divided import has_layers
from vramcast.features.advise.first_changes import expected_changes, first_changes
from vramcast.features.advise.result import Suggestion
from vramcast.features.advise.runs import Runs
from vramcast.features.check.verdict import Pointer, Verdict
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.gpus.state import LocalGpu, local_gpu, local_gpus
from vramcast.jobs.load import LoadedJob
from vramcast.jobs.schema import Job
from vramcast.memory.account import largest
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import as_loaded, choose_card, limit_for, predict
from vramcast.prediction.scaling import Batches

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, repr=False)
class JobCheck(Shown):
    verdict: Verdict
    prediction: JobPrediction

    @property
    def fits(self) -> bool:
        return self.verdict.fits


def check(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    device: int | None = None,
    *,
    margin: float = 0.0,
    steps: int = 3,
    allocator_conf: str | None = None,
    changes: bool = True,
    workers: int = 1,
    allow_code: bool = False,
    progress: Progress = lambda text: None,
) -> JobCheck:
    """Whether `job` fits `gpu`; without one, what is free on card number `device` here, or else the job's target.

    `memory` is what is there for the job, CUDA context included, instead of what is free or the card has. `margin` is a
    share of it that must stay free. `changes`: where it does not fit, look for the best few that make it fit; `workers`
    above 1: so many are traced at a time, in forks of this process (Linux), which must not have used a GPU.
    `allow_code`: a file that `job` names may name code to run.
    """
    loaded = as_loaded(job, allow_code=allow_code)
    spec, local = card_to_check(loaded.job, gpu, memory, device)
    if margin:
        spec = _less(spec or choose_card(loaded.job, None)[0], margin)
    card = spec if spec is not None else choose_card(loaded.job, None)[0]
    workers = workers if changes else 1
    wishes = expected_changes(loaded.job, card, workers) if workers > 1 else ()
    with Runs(card, steps=steps, workers=workers, progress=progress, like=loaded.job, wishes=wishes) as runs:
        result = _predicted(loaded, spec, steps, allocator_conf, progress)
        found: tuple[Suggestion, ...] = ()
        if changes and not result.fits and loaded.job.gpus.pipeline == 1:
            named = card_options(gpu, memory, device, card)
            found = first_changes(loaded, result.prediction, runs, named, result.step_seconds)
    finder = _Finder(loaded, result, local, steps, allocator_conf, progress, found)
    verdict = Verdict(
        name=result.job.name,
        recognised_as=result.recognised_as,
        prediction=result.prediction,
        local=local,
        pointer=finder.pointer(),
        changes=found,
        margin=margin,
    )
    return JobCheck(verdict, result)


def _predicted(
    loaded: LoadedJob, spec: GpuSpec | None, steps: int, allocator_conf: str | None, progress: Progress
) -> JobPrediction:
    """A pipeline fits where each of its stages does: the largest is shown."""
    if loaded.job.gpus.pipeline == 1:
        return predict(loaded, spec, steps=steps, allocator_conf=allocator_conf, progress=progress)
    from vramcast.prediction.ranks import predict_distinct_ranks

    return predict_distinct_ranks(loaded, spec, steps=steps, allocator_conf=allocator_conf, progress=progress)[0]


def card_to_check(
    job: Job, gpu: str | GpuSpec | None, memory: str | int | None, device: int | None
) -> tuple[GpuSpec | None, LocalGpu | None]:
    """The card with as much memory as the job may use; None to let `predict` choose."""
    if gpu is not None and device is not None:
        raise UsageError("--gpu and --device: a card is named, or the one here is taken; leave one out")
    size_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    spec = find_gpu(gpu) if isinstance(gpu, str) else gpu
    local = None
    if spec is None and (device is not None or (job.target.gpu is None and size_bytes is None)):
        local = local_gpu(device) if device is not None else next(iter(local_gpus()), None)
        spec = local.spec() if local is not None else None
    if spec is None and job.target.gpu is not None:
        spec = find_gpu(job.target.gpu)
    if local is not None and size_bytes is None:
        size_bytes = local.free_bytes
    if size_bytes is None:
        return spec, local
    total_bytes = size_bytes if spec is None else min(size_bytes, spec.total_memory_bytes)
    spec = spec or GpuSpec.from_memory(size_bytes)
    if size_bytes <= spec.context_bytes:
        raise UsageError(
            f"{format_size(size_bytes)} {'is free' if local else 'of memory'}: a CUDA context alone takes "
            f"{format_size(spec.context_bytes)}"
        )
    return dataclasses.replace(spec, total_memory_bytes=total_bytes), local


def _less(spec: GpuSpec, margin: float) -> GpuSpec:
    if not 0 < margin < 1:
        raise UsageError(f"--margin {margin}: a share of the memory from 0 up to 1, e.g. 0.1")
    return dataclasses.replace(spec, total_memory_bytes=int(spec.total_memory_bytes * (1 - margin)))


@dataclass(frozen=True, slots=True)
class _Finder:
    """Looks for the one most useful thing to say. What it proposes has been tried."""

    loaded: LoadedJob
    result: JobPrediction
    local: LocalGpu | None
    steps: int
    conf: str | None
    progress: Progress
    changes: tuple[Suggestion, ...]

    def pointer(self) -> Pointer:
        if self.result.fits:
            return self._when_it_fits()
        return self._process() or self._change() or self._batch() or self._card()

    def _when_it_fits(self) -> Pointer:
        result = self.result
        if not result.prediction.comfortable:
            return Pointer(kind="margin", text=f"It is close: {result.prediction.margin.sentence}.")
        part = largest(result.account.parts)[0]
        return Pointer(kind="largest-part", text=f"Most of it is {part.name}: {format_gib(part.size_bytes)}.")

    def _process(self) -> Pointer | None:
        """Other processes are in the way."""
        local = self.local
        if local is None or not local.processes or self.result.device_bytes > local.spec().total_memory_bytes:
            return None
        names = ", ".join(f"{process.name or 'process'} ({process.pid})" for process in local.processes[:3])
        return Pointer(kind="process", text=f"It would fit this card if nothing else used it: {names}.")

    def _batch(self) -> Pointer | None:
        job = self.result.job
        batch = job.effective_sizes["batch"]
        if batch < 2 or (job.step is not None and "batch" not in job.sizes):
            return None
        batches = Batches(job, steps=self.steps, allocator_conf=self.conf, progress=self.progress)
        try:
            fitting = batches.largest(self.result.gpu, batch - 1, limit_for(job, self.result.gpu))
        except VramcastError:  # a batch that this model does not run with
            return None
        if not fitting.batch:
            return None
        steps = -(-batch // fitting.batch) * job.accumulation
        text = f"Batch {fitting.batch:,} fits ({format_gib(fitting.device_bytes)}): --batch {fitting.batch}"
        if job.task == "training":
            text += f", with accumulation {steps:,} for at least the same batch"
        return Pointer(kind="batch", text=text + ".")

    def _change(self) -> Pointer | None:
        if not self.changes:
            return None
        best = self.changes[0]
        text = f"With {best.text} it fits ({format_gib(best.prediction.device_bytes)}): {best.options}"
        return Pointer(kind="change", text=text)

    def _card(self) -> Pointer:
        fitting = [card for card in self.result.cards if card.fits]
        if not fitting:
            most = max(self.result.cards, key=lambda card: card.limit_bytes)
            text = f"No known card holds it; the largest, {most.gpu.short_name}, has {format_gib(most.limit_bytes, 1)}."
            if self.loaded.job.gpus.count == 1 and has_layers(self.loaded.job):
                text += " `vramcast advise --fewest-gpus` says how many cards train it as it is."
            return Pointer(kind="card", text=text)
        smallest = min(fitting, key=lambda card: (card.limit_bytes, card.gpu.id))
        text = f"The smallest known card that holds it is {smallest.gpu.short_name}: --gpu {smallest.gpu.id}."
        return Pointer(kind="card", text=text)
