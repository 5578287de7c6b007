"""`diagnose(log)`: where the time of a run goes, from its log; with its job, from what is predicted of it too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.base.errors import UsageError
from vramcast.base.shown import Shown
from vramcast.features.diagnose.logs.diagnose import diagnose_run, read_logs
from vramcast.features.diagnose.logs.findings import MATTERS
from vramcast.features.diagnose.logs.result import Diagnosis, JobMemory, PredictedStep, Setup
from vramcast.features.diagnose.logs.sample import OPTIMIZER

if TYPE_CHECKING:
    # A log needs none of these, which take longer to load than most logs to read.
    from vramcast.gpus import GpuSpec
    from vramcast.jobs.load import LoadedJob
    from vramcast.jobs.schema import Job
    from vramcast.prediction.job_prediction import JobPrediction

Progress = Callable[[str], None]
THROUGHPUT_OF = ("all", "one")


@dataclass(frozen=True, slots=True, repr=False)
class LogDiagnosis(Shown):
    diagnosis: Diagnosis
    prediction: JobPrediction | None = None

    @property
    def step_seconds(self) -> float | None:
        return None if self.diagnosis.step is None else self.diagnosis.step.seconds

    @property
    def bottleneck(self) -> str:
        return self.diagnosis.bottleneck


def _memory(result: JobPrediction) -> JobMemory:
    prediction = result.prediction
    return JobMemory(
        name=result.job.name,
        gpu=prediction.gpu.short_name,
        device_bytes=prediction.device_bytes,
        reserved_bytes=prediction.peak_reserved_bytes,
        limit_bytes=prediction.limit_bytes,
        fits=prediction.fits,
    )


def _predicted_step(result: JobPrediction) -> PredictedStep | None:
    time = result.time
    if time is None:
        return None
    phases = dict(time.phases)
    if time.recompute_seconds:
        phases["backward"] -= time.recompute_seconds
        phases["recomputation"] = time.recompute_seconds
    return PredictedStep(
        seconds=time.seconds,
        phases=phases,
        # The stages of each component.
        modules={node.name: node.forward_seconds for node in time.modules.walk() if node.name.count(".") == 1},
        limited_by=time.limited_by,
        samples_per_second=None if result.throughput is None else result.throughput.samples_per_second,
    )


def diagnose(
    log: str | Path | Sequence[str | Path],
    job: Job | LoadedJob | Mapping[str, Any] | str | Path | None = None,
    gpu: str | GpuSpec | None = None,
    *,
    batch: int | None = None,
    gpus: int | None = None,
    accumulation: int | None = None,
    sequence: int | None = None,
    throughput: str | None = None,
    changes: bool = True,
    allow_code: bool = False,
    progress: Progress = lambda text: None,
) -> LogDiagnosis:
    """Where the time of a run goes. `log` is its log, or several files of the same run.

    `batch` is of one GPU; `throughput` says whose the log's samples/s is: of "all" GPUs or of "one". What is not said
    is taken from `job`, then from the log. With a job, `changes` to it are traced, alone and together. Without a job
    torch is not imported. `allow_code`: a file that `job` names may name code to run.
    """
    if throughput is not None and throughput not in THROUGHPUT_OF:
        raise UsageError(f"throughput {throughput!r}: write all or one, for the GPUs whose samples/s the log gives")
    for name, value in (("batch", batch), ("gpus", gpus), ("accumulation", accumulation), ("sequence", sequence)):
        if value is not None and value < 1:
            raise UsageError(f"{name}: a whole number above zero is needed, not {value}")
    loaded = None if job is None else _loaded(job, allow_code)
    setup = _setup(None if loaded is None else loaded.job, batch, gpus, accumulation, sequence)
    logs = [log] if isinstance(log, (str, Path)) else list(log)
    if loaded is None and gpu is not None:
        raise UsageError("--gpu: the card matters only for a prediction; name the job too, with --job")
    progress("reading the log")
    collected = read_logs(logs)
    if loaded is None:
        return LogDiagnosis(diagnose_run(collected, setup, throughput_of=throughput))
    from vramcast.prediction.predict import predict

    result = predict(loaded, gpu, progress=progress)
    diagnosed = partial(
        diagnose_run, collected, setup, throughput_of=throughput, job=_memory(result), predicted=_predicted_step(result)
    )
    diagnosis = diagnosed()
    if changes and result.time is not None and diagnosis.step is not None:
        # Only now: what each change gives is worth tracing where the log says how long a step is.
        from vramcast.features.diagnose.changes import predicted_changes

        asked, others = predicted_changes(loaded, gpu, _not_worth_changing(diagnosis), progress)
        diagnosis = diagnosed(asked=asked, changes=others)
    return LogDiagnosis(diagnosis, result)


def _not_worth_changing(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Knobs whose part of the step is so small that the diagnosis names them among what will not help."""
    whole = diagnosis.step.seconds if diagnosis.step is not None else 0.0
    optimizer = sum(part.seconds or 0.0 for part in diagnosis.parts if part.phase == OPTIMIZER)
    return ("optimizer",) if optimizer < MATTERS * whole else ()


def _loaded(job: Job | LoadedJob | Mapping[str, Any] | str | Path, allow_code: bool) -> LoadedJob:
    from vramcast.prediction.predict import as_loaded

    return as_loaded(job, allow_code=allow_code)


def _setup(
    job: Job | None, batch: int | None, gpus: int | None, accumulation: int | None, sequence: int | None
) -> Setup:
    if job is None:
        return Setup(batch=batch, gpus=gpus, accumulation=accumulation, sequence=sequence)
    sizes = job.effective_sizes
    return Setup(
        batch=batch or sizes.get("batch"),
        gpus=gpus or job.gpus.count,
        accumulation=accumulation or job.accumulation,
        sequence=sequence or sizes.get("sequence"),
        checkpointing=job.checkpointing.scope != "none" if job.components else None,
    )
