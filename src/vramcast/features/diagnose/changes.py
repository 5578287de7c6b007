"""The changes of `what_if`, as a diagnosis takes them."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.features.diagnose.logs.result import PredictedChange
from vramcast.features.what_if.result import Outcome
from vramcast.features.what_if.what_if import what_if
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.prediction.step_time import loading_seconds


def predicted_changes(
    loaded: LoadedJob, gpu: str | GpuSpec | None, keep: tuple[str, ...], progress: Callable[[str], None]
) -> tuple[PredictedChange | None, tuple[PredictedChange, ...]]:
    """The job as it is, and with each change whose time is known; `keep` names knobs that are left alone."""
    what_ifs = what_if(loaded, gpu, keep=keep, progress=progress)
    made = [_change(loaded, outcome) for outcome in (what_ifs.asked, *what_ifs.outcomes)]
    return made[0], tuple(outcome for outcome in made[1:] if outcome is not None)


def _change(loaded: LoadedJob, outcome: Outcome) -> PredictedChange | None:
    if outcome.time is None or outcome.throughput is None:
        return None
    job = with_overrides(loaded.job, outcome.overrides)
    dataset = job.dataset
    epoch = outcome.throughput.epoch_seconds
    return PredictedChange(
        change=outcome.text,
        seconds=outcome.time.seconds - outcome.time.phases.get("data", 0.0),
        samples=job.samples_per_step,
        device_bytes=outcome.prediction.device_bytes,
        fits=outcome.prediction.fits,
        loading_seconds=None if dataset is None or dataset.seconds_per_sample is None else loading_seconds(job),
        workers=0 if dataset is None else dataset.workers,
        steps_per_epoch=None if epoch is None else epoch / outcome.time.seconds,
        # Changes made together each have a line of their own.
        cost=outcome.costs[0] if len(outcome.costs) == 1 else "",
    )
