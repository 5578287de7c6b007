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
    found = what_if(loaded, gpu, keep=keep, progress=progress)
    made = [_change(loaded, one) for one in (found.asked, *found.outcomes)]
    return made[0], tuple(one for one in made[1:] if one is not None)


def _change(loaded: LoadedJob, one: Outcome) -> PredictedChange | None:
    if one.time is None or one.throughput is None:
        return None
    job = with_overrides(loaded.job, one.overrides)
    dataset = job.dataset
    epoch = one.throughput.epoch_seconds
    return PredictedChange(
        change=one.text,
        seconds=one.time.seconds - one.time.phases.get("data", 0.0),
        samples=job.samples_per_step,
        device_bytes=one.prediction.device_bytes,
        fits=one.prediction.fits,
        loading_seconds=None if dataset is None or dataset.seconds_per_sample is None else loading_seconds(job),
        workers=0 if dataset is None else dataset.workers,
        steps_per_epoch=None if epoch is None else epoch / one.time.seconds,
        # Of several together each has a line of its own.
        cost=one.costs[0] if len(one.costs) == 1 else "",
    )
