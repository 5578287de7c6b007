"""`plan(job)`: the ramp-up of a careful person, every run of it traced. torch is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.base.shown import Shown
from vramcast.base.units import format_gib
from vramcast.features.advise.advise import JobAdvice, advise
from vramcast.features.advise.config import card_options, config_text
from vramcast.features.check.check import card_to_check
from vramcast.features.plan.checklist import checklist
from vramcast.features.plan.ramp import Rung, rungs
from vramcast.features.plan.result import Ramp, RampStep
from vramcast.gpus import GpuSpec
from vramcast.jobs.editing.sources import steps_key
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory import Prediction
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import as_loaded, choose_card, predict

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, repr=False)
class JobPlan(Shown):
    ramp: Ramp
    loaded: LoadedJob
    advised: JobAdvice | None = None
    """Where the job as it is does not fit."""

    @property
    def reached(self) -> bool:
        """The job as it is fits."""
        return self.ramp.reached

    @property
    def steps(self) -> tuple[RampStep, ...]:
        return self.ramp.steps

    def job(self, number: int) -> Job:
        """The job of run `number`, for `vramcast.predict`."""
        return with_overrides(self.loaded.job, self.ramp.steps[number].overrides)


def plan(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    device: int | None = None,
    *,
    steps: int = 3,
    allow_code: bool = False,
    progress: Progress = lambda text: None,
) -> JobPlan:
    """How to get from a first small run to `job` on `gpu`, `memory`, or what is free on card `device` (as in `check`).

    Each run is traced as it is; the ramp ends at the first that does not fit, with what `advise` proposes.
    `allow_code`: a file that `job` names may name code to run.
    """
    loaded = as_loaded(job, allow_code=allow_code)
    spec, local = card_to_check(loaded.job, gpu, memory, device)
    card = spec if spec is not None else choose_card(loaded.job, None)[0]
    wished = predict(loaded, card, steps=steps, progress=progress)
    named = card_options(gpu, memory, device, card)
    ramp_steps: list[RampStep] = []
    left_out: list[str] = []
    for rung in rungs(loaded):
        progress(f"predicting: {rung.name}")
        try:
            prediction = _predicted(loaded, rung, card, steps, wished)
        except VramcastError as error:
            left_out.append(f"{rung.name}: {error}")
            continue
        ramp_steps.append(_step(loaded, rung, prediction, named))
        if not ramp_steps[-1].fits:
            break
    advised = None
    if not wished.fits:
        progress("looking for what fits")
        advised = advise(loaded, gpu, memory, device, steps=steps, progress=progress)
    ramp = Ramp(
        job=loaded.job.name,
        recognised_as=loaded.recognised_as,
        local=local,
        wished=wished.prediction,
        checks=checklist(wished, local),
        steps=tuple(ramp_steps),
        steps_key=steps_key(loaded),
        advice=None if advised is None else advised.advice,
        left_out=tuple(left_out),
    )
    return JobPlan(ramp, loaded, advised)


def _predicted(loaded: LoadedJob, rung: Rung, card: GpuSpec, steps: int, wished: JobPrediction) -> Prediction:
    if not rung.changes:
        return wished.prediction
    return predict(with_overrides(loaded.job, rung.changes), card, steps=steps).prediction


def _step(loaded: LoadedJob, rung: Rung, prediction: Prediction, card: str) -> RampStep:
    job = with_overrides(loaded.job, rung.changes)
    return RampStep(
        name=rung.name,
        overrides=rung.changes,
        batch=job.effective_sizes["batch"],
        accumulation=job.accumulation,
        gpus=job.gpus.count,
        sizes={name: size for name, size in job.sizes.items() if name != "batch"},
        prediction=prediction,
        config=config_text(loaded, rung.changes, card),
        steps=max(prediction.replayed_steps, prediction.steps),
        watch=tuple(_watch(job, prediction)),
    )


def _watch(job: Job, prediction: Prediction) -> list[str]:
    needs = prediction.device_bytes
    if not prediction.fits:
        return []
    most = min(prediction.with_margin_bytes, prediction.limit_bytes)
    lines = [f"nvidia-smi shows {format_gib(needs)} at the peak; above {format_gib(most)} stop, something differs"]
    if not prediction.comfortable:
        lines.append("it is close: less than the margin is left")
    if prediction.retries:
        lines.append("the allocator has to give memory back and try again, which takes time")
    for name, part in job.components.items():
        if part.freeze and part.freeze_steps:
            lines.append(
                f"{name}: frozen parts begin to train at step {part.freeze_steps:,}; a run that ends before shows less"
            )
    return lines
