"""Saved results, predicted or measured, read back into one shape so that they can be set side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.base.input_files import LARGEST_RESULT_BYTES, open_input, read_json
from vramcast.memory.module_peaks import forward_peaks
from vramcast.memory.prediction import Prediction, predict, with_time
from vramcast.memory.replay import replay
from vramcast.trace import StepTrace
from vramcast.trace.storage import FORMAT as TRACE_FORMAT

PREDICTION_FORMAT = "vramcast-prediction"
PREDICTION_VERSION = 1
JOB_PREDICTION_FORMAT = "vramcast-job-prediction"
MEASUREMENT_FORMAT = "vramcast-measurement"
MEASUREMENT_VERSION = 1
_GZIP = b"\x1f\x8b"
_LARGEST_SIZE = 2**62
_LONGEST_SECONDS = 1e12


@dataclass(frozen=True, slots=True)
class Peaks:
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a prediction and a measurement both can say; empty or None where one of them cannot."""

    name: str
    kind: str
    """predicted or measured"""
    gpu: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int | None
    phases: Mapping[str, Peaks]
    """Over all steps."""
    steps: tuple[Peaks, ...]
    parts: Mapping[str, int] = field(default_factory=dict)
    module_peaks: Mapping[str, int] = field(default_factory=dict)
    """Highest allocated memory during the forward pass of a module."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    loading: Mapping[str, Any] | None = None
    """Of a measurement whose job has a data loader: how long that takes alone."""


def is_result(path: Path) -> bool:
    """A file that vramcast wrote; any other may be a job."""
    if not os.path.isfile(path):
        return False
    try:
        document = _read(path)
    except UsageError:
        return _is_packed(path)  # a trace that is cut short, rather than a job
    return str(document.get("format", "")).startswith("vramcast-")


def load_result(path: Path, name: str | None = None) -> Result:
    """A trace, a prediction (`run --json`) or a measurement (`measure --save`)."""
    name = path.stem if name is None else name
    document = _read(path)
    kind = document.get("format")
    try:
        if kind == TRACE_FORMAT:
            trace = StepTrace.load(path)
            return result_of_prediction(name, with_time(predict(trace)), forward_peaks(replay(trace)))
        if kind == PREDICTION_FORMAT:
            return _prediction(name, document)
        if kind == JOB_PREDICTION_FORMAT:
            # The time of the job: earlier releases kept that of its trace alone in the prediction.
            return _prediction(name, {**document["prediction"], "time": document.get("time")})
        if kind == MEASUREMENT_FORMAT:
            return measured_result(name, document)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path} is damaged: {repr(error)[:200]}") from error
    raise UsageError(f"{path} is neither a trace, a prediction nor a measurement of vramcast")


def saved_prediction(path: Path) -> Prediction | None:
    """The prediction of a saved trace, with all that can be drawn of it; None for other results."""
    return with_time(predict(StepTrace.load(path))) if _read(path).get("format") == TRACE_FORMAT else None


def result_of_prediction(name: str, prediction: Prediction, module_peaks: Mapping[str, int]) -> Result:
    account = prediction.account
    phases: dict[str, Peaks] = {}
    for stretch in account.phases:
        _raise(phases, stretch.phase, Peaks(stretch.peak_allocated_bytes, stretch.peak_reserved_bytes))
    return Result(
        name=name,
        kind="predicted",
        gpu=prediction.gpu.short_name,
        peak_allocated_bytes=prediction.peak_allocated_bytes,
        peak_reserved_bytes=prediction.peak_reserved_bytes,
        device_bytes=prediction.device_bytes,
        phases=phases,
        steps=tuple(Peaks(s.peak_allocated_bytes, s.peak_reserved_bytes) for s in account.steps),
        parts={part.name: part.size_bytes for part in account.parts if part.size_bytes},
        module_peaks=module_peaks,
        seconds={} if prediction.time is None else {"step": prediction.time.seconds, **prediction.time.phases},
    )


def _prediction(name: str, document: dict[str, Any]) -> Result:
    _check_version(name, document, PREDICTION_VERSION)
    account = document["account"]
    phases: dict[str, Peaks] = {}
    for stretch in account["phases"]:
        _raise(phases, str(stretch["phase"]), _peaks(stretch))
    peak = _peaks(document)
    return Result(
        name=name,
        kind="predicted",
        gpu=str(document["gpu"]["name"]),
        peak_allocated_bytes=peak.allocated_bytes,
        peak_reserved_bytes=peak.reserved_bytes,
        device_bytes=None if document["device_bytes"] is None else _size(document["device_bytes"]),
        phases=phases,
        steps=tuple(_peaks(step) for step in account["steps"]),
        parts={name: _size(size) for name, size in account["parts"].items() if size},
        seconds=_seconds(document.get("time")),
    )


def _seconds(time: Mapping[str, Any] | None) -> dict[str, float]:
    """Documents of earlier releases have no time."""
    if time is None:
        return {}
    return {"step": _time(time["step_seconds"])} | {name: _time(value) for name, value in time["phases"].items()}


def measured_result(name: str, document: Mapping[str, Any]) -> Result:
    """A measurement document as `vramcast measure` writes it."""
    _check_version(name, document, MEASUREMENT_VERSION)
    run = document["run"]
    phases: dict[str, Peaks] = {}
    _raise(phases, "setup", _peaks(run["setup"]))
    for step in run["steps"]:
        for phase, point in step["phase_peaks"].items():
            _raise(phases, phase, _peaks(point))
    timed = run["steps"][run["warmup_steps"] :]
    seconds = {"step": _time(run["step_seconds"])}
    for phase in timed[0]["phase_seconds"] if timed else ():
        seconds[phase] = sum(_time(step["phase_seconds"].get(phase, 0.0)) for step in timed) / len(timed)
    if timed:
        seconds["data (host)"] = sum(_time(step["data_seconds"]) for step in timed) / len(timed)
    driver = [_size(value) for name, value in run["driver"].items() if name in ("setup_bytes", "end_bytes") and value]
    extra = run.get("extra", {})
    peak = _peaks(run)
    return Result(
        name=name,
        kind="measured",
        gpu=str(run["environment"]["gpu"]),
        peak_allocated_bytes=peak.allocated_bytes,
        peak_reserved_bytes=peak.reserved_bytes,
        device_bytes=max(driver, default=None),
        phases=phases,
        steps=tuple(_peaks(step) for step in run["steps"]),
        module_peaks={module: _size(size) for module, size in extra.get("module_peaks", {}).items()},
        seconds=seconds,
        loading=extra.get("loading"),
    )


def _peaks(said: Mapping[str, Any]) -> Peaks:
    return Peaks(_size(said["peak_allocated_bytes"]), _size(said["peak_reserved_bytes"]))


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST_SIZE:
        raise ValueError(f"{str(value)[:40]} is not a size in bytes")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _LONGEST_SECONDS:
        raise ValueError(f"{str(value)[:40]} is not a time in seconds")
    return float(value)


def _raise(phases: dict[str, Peaks], phase: str, peaks: Peaks) -> None:
    before = phases.get(phase, peaks)
    allocated = max(before.allocated_bytes, peaks.allocated_bytes)
    phases[phase] = Peaks(allocated, max(before.reserved_bytes, peaks.reserved_bytes))


def _check_version(name: str, document: Mapping[str, Any], version: int) -> None:
    if document.get("version") != version:
        raise UsageError(f"{name} has version {document.get('version')!r}; this vramcast reads version {version}")


def _read(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path, LARGEST_RESULT_BYTES)
    except UsageError as error:
        raise UsageError(f"not a file of vramcast: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a file of vramcast")
    return document


def _is_packed(path: Path) -> bool:
    try:
        with open_input(path) as file:
            return file.read(2) == _GZIP
    except (OSError, UsageError):
        return False
