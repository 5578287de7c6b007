"""Recorded times: of each step and phase, and of each operator, of workloads measured on a real card."""

from __future__ import annotations

import difflib
import gzip
import json
import re
import zipfile
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lab import DATA
from lab.measuring.measure_corpus import FREE_RUNNING_STEPS
from lab.measuring.recorded import Recorded, identity
from vramcast.features.measure.host_speed import slowdown
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.memory.lengthening import lengthened
from vramcast.memory.replay import replay
from vramcast.timing import predict_step
from vramcast.timing.costs import CostModel
from vramcast.timing.host import undisturbed_host
from vramcast.trace import StepTrace
from vramcast.trace.calls import MARKS, OpCalls

RECORDS = DATA / "records"
OP_TIMES = RECORDS / "op_times"
STEP_TIMES = (RECORDS / "times", OP_TIMES, RECORDS / "watched_times")
NOISE = 0.4
USUAL_STEPS = 7 + FREE_RUNNING_STEPS
PHASES = ("forward", "backward", "optimizer")
UNWATCHED_HOST = 1.33
"""What the host of a recording is taken to have needed over an undisturbed one where its speed was not watched: the
geometric middle between none and a neighbour on every core, where a loop takes 1.8 times as long."""
HOST_FACTORS = (1.0, 1.3, 1.7)
"""Hosts that a step is predicted for: what each takes over an undisturbed one."""

_DRAWN = re.compile(r"d(\d+)-")

# Under a recording mode some ops make tensors that they do not make alone, and the other way round.
_MAY_DIFFER = {
    "aten.empty.memory_format", "aten.lift_fresh.default", "aten.detach.default", "aten.scalar_tensor.default",
}  # fmt: skip


@dataclass(frozen=True)
class AtHost:
    """A step whose host takes `factor` times as long as an undisturbed one, measured or predicted."""

    factor: float
    seconds: float
    phases: Mapping[str, float]


@dataclass(frozen=True)
class MeasuredTimes(Recorded):
    """The medians over the steps of one run, after warm-up."""

    seconds: float
    """What is compared with predictions: see `robust_seconds`."""
    step_seconds: float
    """Time of steps with a wait between them, which the phases add up to."""
    reserved_bytes: int
    """The peak; where a workload ran more than once, of the last run."""
    steps: int
    """That the peak is of: it can still grow after several, as blocks come to lie differently each time."""
    phases: Mapping[str, float]
    issue_seconds: float | None
    noisy: bool = False
    """With and without waits between steps the times were far apart, and the smaller one counts."""
    watched: AtHost | None = None
    """Further steps, whose host's speed is known."""


def measured_times(folders: Sequence[Path] = STEP_TIMES) -> dict[str, list[MeasuredTimes]]:
    """Every recorded run, by workload; some were measured more than once."""
    by_workload: dict[str, list[MeasuredTimes]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.jsonl.gz")):
            gpu = path.name.partition("-")[0]
            for line in gzip.decompress(path.read_bytes()).splitlines():
                record = json.loads(line)
                if "error" not in record:
                    by_workload.setdefault(record["name"], []).append(_times(record, gpu))
    return by_workload


def draw_of(name: str) -> int:
    """The draw that a workload comes from (4 for `d4-…`), or 0."""
    match = _DRAWN.match(name)
    return int(match[1]) if match else 0


def held_out(name: str) -> bool:
    """Whether a workload is of the newest draw: nothing is fitted to that, so that it says what to expect."""
    return draw_of(name) == _newest_draw()


@cache
def _newest_draw() -> int:
    return max(int(path.stem.partition("-")[2]) for path in RECORDS.parent.glob("drawn-*.yaml"))


def robust_seconds(step: float, free_running: float | None) -> tuple[float, bool]:
    """One figure of steps timed one by one and of steps in a row; and whether they are too far apart to average.

    Something else slowed down one of the two then, so that the smaller is nearer to the truth.
    """
    if not free_running:
        return step, False
    noisy = max(step, free_running) > (1 + NOISE) * min(step, free_running)
    return (min(step, free_running) if noisy else (step + free_running) / 2), noisy


def _times(record: dict[str, Any], gpu: str) -> MeasuredTimes:
    steps = record["steps"][record["warmup_steps"] :]
    step_seconds = median(step["device_seconds"] for step in steps)
    seconds, noisy = robust_seconds(step_seconds, record.get("free_running_step_seconds"))
    return MeasuredTimes(
        **identity(record, gpu),
        seconds=seconds,
        step_seconds=step_seconds,
        reserved_bytes=record["peak_reserved_bytes"],
        steps=len(record["steps"]) + (FREE_RUNNING_STEPS if record.get("free_running_step_seconds") else 0),
        phases={name: median(step["phase_seconds"].get(name, 0.0) for step in steps) for name in PHASES},
        issue_seconds=median(step["issue_seconds"] for step in steps) if "issue_seconds" in steps[0] else None,
        noisy=noisy,
        watched=_watched(record["watched"]) if record.get("watched") else None,
    )


def _watched(watched: dict[str, Any]) -> AtHost:
    steps = watched["steps"]
    phases = {name: median(step["phase_seconds"].get(name, 0.0) for step in steps) for name in PHASES}
    return AtHost(slowdown(watched), median(step["device_seconds"] for step in steps), phases)


def combined(runs: Sequence[MeasuredTimes]) -> MeasuredTimes:
    """One figure of several runs: hosts differ from run to run, so the mean is nearer to what to expect."""
    watched = [run.watched for run in runs if run.watched is not None]
    return replace(
        runs[-1],
        seconds=fmean(run.seconds for run in runs),
        step_seconds=fmean(run.step_seconds for run in runs),
        phases={name: fmean(run.phases[name] for run in runs) for name in PHASES},
        noisy=any(run.noisy for run in runs),
        watched=watched[-1] if watched else None,
    )


@dataclass(frozen=True)
class TimeFigures:
    """What is predicted of a step, short enough to be handed from a child process."""

    seconds: float
    """On a host as it was on average when runs were recorded."""
    phases: Mapping[str, float]
    limited_by: str
    device_seconds: float
    host_seconds: float
    specification_seconds: float
    """As for a card that was never measured."""
    at_host_speed: tuple[AtHost, ...] = ()
    """By factor, undisturbed and busy; nothing in predictions that were written before this was."""
    reserved_bytes: int = 0
    """The predicted peak."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TimeFigures:
        points = tuple(AtHost(**point) for point in document.get("at_host_speed", ()))
        return cls(**{**document, "at_host_speed": points})

    def at_host(self, factor: float) -> TimeFigures | None:
        """The same for a host that takes `factor` times as long as an undisturbed one, on the line through the two
        nearest of the predicted ones."""
        points = self.at_host_speed
        if len(points) < 2:
            return None
        place = bisect_left([point.factor for point in points], factor)
        low, high = points[min(max(place, 1), len(points) - 1) - 1 :][:2]
        share = (factor - low.factor) / (high.factor - low.factor)

        def between(low: float, high: float) -> float:
            return low + share * (high - low)

        phases = {name: between(seconds, high.phases.get(name, 0.0)) for name, seconds in low.phases.items()}
        return replace(self, seconds=between(low.seconds, high.seconds), phases=phases)


def time_figures(trace: StepTrace, steps: int = USUAL_STEPS) -> TimeFigures | None:
    gpu = GpuSpec.from_dict(trace.gpu)
    model = _model(gpu.id, calibrated=True)
    as_recorded = undisturbed_host().scaled(UNWATCHED_HOST)
    time = predict_step(trace, gpu, model=model, host=as_recorded)
    plain = predict_step(trace, gpu, model=_model(gpu.id, calibrated=False), host=as_recorded)
    if time is None or plain is None:
        return None
    points = []
    for factor in HOST_FACTORS:
        there = predict_step(trace, gpu, model=model, host=undisturbed_host().scaled(factor))
        if there is not None:
            points.append(AtHost(factor, there.seconds, dict(there.phases)))
    return TimeFigures(
        seconds=time.seconds,
        phases=dict(time.phases),
        limited_by=time.limited_by,
        device_seconds=time.device_seconds,
        host_seconds=time.host_seconds,
        specification_seconds=plain.seconds,
        at_host_speed=tuple(points),
        reserved_bytes=replay(lengthened(trace, steps)).peak_reserved.reserved_bytes,
    )


@cache
def _model(gpu: str, *, calibrated: bool) -> CostModel:
    return CostModel.for_gpu(find_gpu(gpu)) if calibrated else CostModel(find_gpu(gpu))


def op_records() -> Iterator[dict[str, Any]]:
    """Each workload's operators with their device times, as `measure_corpus.py --mode op-times` wrote them."""
    for path in sorted(OP_TIMES.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield json.loads(gzip.decompress(archive.read(name)))


def measured_rows(calls: OpCalls, rows: range, record: Mapping[str, Any]) -> dict[int, tuple[float, int]]:
    """(device seconds, kernels) of the rows of a traced step, taken from the recorded step of the same workload."""
    real = [record["rows"][number] for number in record["step"]]
    real = [row for row in real if row["op"] not in _MAY_DIFFER]
    names = {row: calls.ops[calls.call[row]] for row in rows}
    mine = [row for row in rows if names[row] not in _MAY_DIFFER and names[row] not in MARKS]
    theirs, ours = [row["op"] for row in real], [names[row] for row in mine]
    measured: dict[int, tuple[float, int]] = {}
    if theirs == ours:
        pairs: list[tuple[int, Sequence[Any]]] = [(row, [op]) for row, op in zip(mine, real, strict=True)]
    else:
        pairs = []
        matcher = difflib.SequenceMatcher(a=theirs, b=ours, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            if tag == "equal":
                pairs += [(mine[j], [real[i]]) for i, j in zip(range(i1, i2), range(j1, j2), strict=True)]
            elif j2 > j1:
                pairs.append((mine[j2 - 1], real[i1:i2]))
    for row, ops in pairs:
        seconds = sum(op["total_ns"] / op["count"] for op in ops) * 1e-9
        measured[row] = seconds, sum(len(op["kernels"]) for op in ops)
    return measured
