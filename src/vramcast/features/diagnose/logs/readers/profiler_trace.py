"""Chrome traces as torch.profiler writes them, of any size: read twice, a few arrays kept.

The first pass finds steps and phases on the host; the second gives each kernel to the phase whose code launched it.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.json_array import objects
from vramcast.features.diagnose.logs.sample import Sample
from vramcast.features.diagnose.logs.text import Source, opened

NAME = "torch.profiler trace"
READS = (
    "ProfilerStep, loading, autograd, Optimizer.step and NCCL by name; kernels by the launch that caused them; idle GPU"
)

MOST_LAUNCHES = 1_000_000
_MOST_SPANS = 500_000
_MICRO = 1e-6
_STEP = re.compile(r"ProfilerStep#\d+")
_LAUNCH = ("cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_ANNOTATED = (q.OPTIMIZER, q.BACKWARD, q.DATA)
_ALWAYS = (q.FORWARD, q.BACKWARD, q.SYNC, q.OPTIMIZER)
"""A trace with kernels shows these; one that has none of a phase says that it took no time."""


def recognises(head: bytes) -> bool:
    start = head.lstrip()[:1]
    if start == b"{":
        return b'"traceEvents"' in head or (b'"schemaVersion"' in head and b'"deviceProperties"' in head)
    return start == b"[" and b'"ph"' in head


@dataclass(slots=True)
class _Spans:
    """Stretches of time of one kind: their starts, ends, and the thread they are on."""

    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))

    def add(self, start: float, seconds: float) -> None:
        if len(self.starts) < _MOST_SPANS:
            self.starts.append(start)
            self.ends.append(start + seconds)

    def merge(self) -> None:
        """Sort them, and join those that overlap."""
        starts, ends = array("d"), array("d")
        for start, end in sorted(zip(self.starts, self.ends, strict=True)):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        self.starts, self.ends = starts, ends

    def hold(self, at: float) -> bool:
        i = bisect_right(self.starts, at) - 1
        return i >= 0 and at < self.ends[i]

    @property
    def seconds(self) -> float:
        return sum(self.ends) - sum(self.starts)


@dataclass(slots=True)
class _Host:
    """What the host did, by phase."""

    steps: _Spans = field(default_factory=_Spans)
    spans: dict[str, _Spans] = field(default_factory=lambda: {phase: _Spans() for phase in _ANNOTATED})
    ops: _Spans = field(default_factory=_Spans)
    """Operators and all that is annotated."""
    first: float = float("inf")
    last: float = float("-inf")
    events: int = 0

    def phase_at(self, at: float) -> str:
        """Autograd runs beside the main thread, which waits: what is launched meanwhile is its."""
        for phase in _ANNOTATED:
            if self.spans[phase].hold(at):
                return phase
        return q.FORWARD


def samples(path: str, source: Source) -> Iterator[Sample]:
    host = _host(source)
    if not host.events:
        raise UsageError(f"{source.name}: a trace without a single timed event")
    with opened(path) as again:
        yield from _device(host, again)


def _host(source: Source) -> _Host:
    host = _Host()
    for event in objects(source, "traceEvents"):
        timed = _timed(event)
        if timed is None:
            continue
        start, seconds, name, category = timed
        host.events += 1
        if category in _ON_GPU or category in _LAUNCH or category == "python_function":
            continue
        if category.startswith("gpu_"):
            continue
        host.first, host.last = min(host.first, start), max(host.last, start + seconds)
        if _STEP.fullmatch(name):
            host.steps.add(start, seconds)
        else:
            phase = _phase(name)
            if phase is not None:
                host.spans[phase].add(start, seconds)
            if phase is not None or name.startswith("aten::"):
                host.ops.add(start, seconds)
    for spans in (*host.spans.values(), host.ops):
        spans.merge()
    return host


def _phase(name: str) -> str | None:
    """The phase that an annotation of PyTorch itself stands for."""
    if name.startswith(("Optimizer.step", "Optimizer.zero_grad")):
        return q.OPTIMIZER
    if name.startswith("enumerate(DataLoader)"):
        return q.DATA
    if name.startswith("autograd::engine::evaluate_function"):
        return q.BACKWARD
    return None


def _device(host: _Host, source: Source) -> Iterator[Sample]:
    phases = list(q.PHASES)
    launched: dict[int, int] = {}
    busy, computing = _Spans(), _Spans()
    by_phase = dict.fromkeys(phases, 0.0)
    waiting: list[tuple[int, float]] = []
    kernels = 0
    for event in objects(source, "traceEvents"):
        timed = _timed(event)
        if timed is None:
            continue
        start, seconds, name, category = timed
        if category in _LAUNCH:
            correlation = _correlation(event)
            if correlation is not None and len(launched) < MOST_LAUNCHES:
                launched[correlation] = phases.index(host.phase_at(start))
        elif category in _ON_GPU:
            kernels += 1
            busy.add(start, seconds)
            if "nccl" in name.lower():
                continue
            computing.add(start, seconds)
            correlation = _correlation(event)
            if correlation in launched:
                by_phase[phases[launched.pop(correlation)]] += seconds
            elif correlation is not None and len(waiting) < MOST_LAUNCHES:
                waiting.append((correlation, seconds))
    for number, seconds in waiting:
        by_phase[phases[launched[number]] if number in launched else q.FORWARD] += seconds
    busy.merge()
    computing.merge()
    # Only what nothing else hides costs time.
    by_phase[q.SYNC] = busy.seconds - computing.seconds
    yield _summary(host, busy, by_phase, kernels)


def _summary(host: _Host, busy: _Spans, by_phase: dict[str, float], kernels: int) -> Sample:
    lengths = [end - start for start, end in zip(host.steps.starts, host.steps.ends, strict=True)]
    n_steps = max(1, len(lengths))
    values: dict[str, float] = {}
    if lengths:
        # The mean, as for the phases: a trace has few steps, and its parts must add up.
        values[q.STEP_SECONDS] = sum(lengths) / n_steps
    if kernels:
        window = sum(lengths) if lengths else host.last - host.first
        values[q.GPU_IDLE_SECONDS] = max(0.0, window - busy.seconds) / n_steps
        values |= {q.phase_key(phase): by_phase[phase] / n_steps for phase in _ALWAYS}
        data = host.spans[q.DATA].seconds / n_steps
        if data:
            values[q.phase_key(q.DATA)] = data
    else:
        values |= _host_phases(host, n_steps)
    return Sample(values=values)


def _host_phases(host: _Host, n_steps: int) -> dict[str, float]:
    """A trace without a GPU: wall-clock time of the annotations."""
    phases = {phase: spans.seconds / n_steps for phase, spans in host.spans.items() if spans.seconds}
    phases[q.FORWARD] = max(0.0, host.ops.seconds / n_steps - sum(phases.values()))
    return {q.phase_key(phase): seconds for phase, seconds in phases.items()}


def _timed(event: dict[str, Any]) -> tuple[float, float, str, str] | None:
    """Start, seconds, name and category of a complete event."""
    if event.get("ph") != "X":
        return None
    start, length = event.get("ts"), event.get("dur")
    try:
        seconds = float(length) * _MICRO  # type: ignore[arg-type]
        at = float(start) * _MICRO  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    if not 0 <= seconds < 1e9 or not abs(at) < 1e13:
        return None
    return at, seconds, str(event.get("name", "")), str(event.get("cat", ""))


def _correlation(event: dict[str, Any]) -> int | None:
    arguments = event.get("args")
    number = arguments.get("correlation") if isinstance(arguments, dict) else None
    return number if isinstance(number, int) else None
