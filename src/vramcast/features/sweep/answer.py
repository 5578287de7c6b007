"""The answer to one question: a row of plain figures."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.base.access import CodeGate
from vramcast.base.errors import UsageError, VramcastError
from vramcast.features.sweep.grid import Question

FITS, DOES_NOT_FIT, CANNOT_PREDICT, BAD_INPUT, FAILED = "fits", "does not fit", "cannot predict", "bad input", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: str
    verdict: str
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    device_bytes: int | None = None
    """What nvidia-smi would show."""
    step_seconds: float | None = None
    samples_per_second: float | None = None
    message: str = ""
    """Why there is no figure."""


def answer(question: Question, allow_code: bool = False) -> Answer:
    """Errors are answers too: the rest of the grid goes on."""
    try:
        return _predict(question, allow_code)
    except VramcastError as error:
        verdict = BAD_INPUT if isinstance(error, UsageError) else CANNOT_PREDICT
        return Answer(id=question.id, verdict=verdict, message=_line(str(error)))
    except Exception as error:  # a defect in one question must not end the others
        return Answer(id=question.id, verdict=FAILED, message=_line(f"{type(error).__name__}: {error}"))


def _predict(question: Question, allow_code: bool) -> Answer:
    from vramcast.jobs.load import load_job
    from vramcast.jobs.readers import Request
    from vramcast.prediction.ranks import predict_distinct_ranks
    from vramcast.prediction.step_time import job_throughput

    loaded = load_job(question.job, question.changes, Request(gate=CodeGate(allowed=allow_code)))
    found, _ = predict_distinct_ranks(loaded, question.gpu, steps=question.steps)
    time = found.prediction.time
    rate = job_throughput(loaded.job, time, found.sizes)
    return Answer(
        id=question.id,
        verdict=FITS if found.fits else DOES_NOT_FIT,
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=found.peak_reserved_bytes,
        device_bytes=found.device_bytes,
        step_seconds=None if time is None else time.seconds,
        samples_per_second=None if rate is None else rate.samples_per_second,
    )


def _line(text: str) -> str:
    return " ".join(text.split())
