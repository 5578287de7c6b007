"""Run a workload factory on the real GPU, in this process, and say what it took.

One workload, one process: the caching allocator keeps what an earlier run left behind, so a second run in
the same process would measure the first one too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import torch

from vramcast.base.errors import UsageError
from vramcast.base.factories import Factory
from vramcast.features.measure.driver_state import device_used_bytes, environment, process_used_bytes
from vramcast.features.measure.host_speed import watched_steps
from vramcast.features.measure.host_state import HostWatch, pinned_bytes, resident_bytes
from vramcast.features.measure.phases import PhaseWatcher


@dataclass(frozen=True)
class MemoryPoint:
    """The allocator's counters over one stretch of the run: peaks inside it, levels at its end."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class StepMeasurement:
    """One optimizer iteration, with its peaks and its time by phase."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    allocated_after_bytes: int
    reserved_after_bytes: int
    phase_peaks: dict[str, MemoryPoint]
    wall_seconds: float
    """Host time of the step with a synchronisation at its end."""
    issue_seconds: float
    """Host time until the step's code returned, before that synchronisation."""
    device_seconds: float
    """From the first to the last CUDA event of the step."""
    phase_seconds: dict[str, float]
    """Between CUDA events at the cuts of the step; sums to device_seconds."""
    data_seconds: float
    """Host time in data loaders and in copies from the CPU; it lies inside the forward phase."""


@dataclass(frozen=True)
class RealRun:
    """A measured run. Peaks are over the whole process, set-up included."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    num_alloc_retries: int
    num_ooms: int
    setup: MemoryPoint
    setup_seconds: float
    steps: list[StepMeasurement]
    warmup_steps: int
    step_seconds: float
    """Mean device time of the steps after warm-up."""
    free_running_step_seconds: float | None
    """Per step over a few steps with no synchronisation between them, as a training loop runs them."""
    driver: dict[str, int | None]
    """NVML's figure for this process with only a context, after set-up and at the end; the whole card's before."""
    environment: dict[str, Any]
    seed: int
    host: dict[str, dict[str, int]] = field(default_factory=dict)
    """The computer's memory: resident before and after set-up, its peaks in the steps, and PyTorch's pinned memory."""
    extra: dict[str, Any] = field(default_factory=dict)
    watched: dict[str, Any] = field(default_factory=dict)
    """Further steps, each with how fast the host was meanwhile (`host_speed.py`); where asked for."""

    def to_json(self) -> dict[str, Any]:
        """The measurement as plain dictionaries and lists."""
        return asdict(self)


class _Recorder:
    """Collects peaks and CUDA events at every cut of the current step."""

    def __init__(self) -> None:
        self.points: list[tuple[str, MemoryPoint]] = []
        self.events: list[tuple[str, torch.cuda.Event]] = []
        self.enabled = True

    def boundary(self, ended_phase: str) -> None:
        if not self.enabled:
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append((ended_phase, event))
        self.points.append((ended_phase, take_memory_point()))

    def clear(self) -> None:
        self.points, self.events = [], []

    def phase_peaks(self) -> dict[str, MemoryPoint]:
        merged: dict[str, MemoryPoint] = {}
        for phase, point in self.points:
            merged[phase] = merge_points(merged[phase], point) if phase in merged else point
        return merged

    def phase_seconds(self, start: torch.cuda.Event) -> dict[str, float]:
        seconds: dict[str, float] = {}
        previous = start
        for phase, event in self.events:
            seconds[phase] = seconds.get(phase, 0.0) + previous.elapsed_time(event) / 1e3
            previous = event
        return seconds


def take_memory_point() -> MemoryPoint:
    """Read the allocator's counters and start new peaks from the present levels."""
    # The nested dictionary straight from C++ costs a fraction of torch.cuda.memory_stats().
    stats = torch._C._cuda_memoryStats(torch.cuda.current_device())
    torch.cuda.reset_peak_memory_stats()
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return MemoryPoint(
        peak_allocated_bytes=allocated["peak"],
        peak_reserved_bytes=reserved["peak"],
        peak_requested_bytes=stats["requested_bytes"]["all"]["peak"],
        allocated_bytes=allocated["current"],
        reserved_bytes=reserved["current"],
    )


def merge_points(first: MemoryPoint, second: MemoryPoint) -> MemoryPoint:
    """Peaks over both stretches, levels of the second."""
    return MemoryPoint(
        peak_allocated_bytes=max(first.peak_allocated_bytes, second.peak_allocated_bytes),
        peak_reserved_bytes=max(first.peak_reserved_bytes, second.peak_reserved_bytes),
        peak_requested_bytes=max(first.peak_requested_bytes, second.peak_requested_bytes),
        allocated_bytes=second.allocated_bytes,
        reserved_bytes=second.reserved_bytes,
    )


def measure_factory(
    factory: Factory,
    arguments: Mapping[str, Any] | None = None,
    *,
    steps: int = 6,
    warmup_steps: int = 2,
    free_running_steps: int = 0,
    seed: int = 0,
    exclusive: Callable[[], AbstractContextManager[Any]] = nullcontext,
    then: Callable[[Callable[[], object], PhaseWatcher], object] | None = None,
    watch_host: bool = False,
) -> RealRun:
    """Build the job, run `steps` steps, and measure. `exclusive` guards the parts whose time counts; `then` gets
    the step after all of that has been read, still inside. `watch_host` measures further steps, each with how fast the
    host was meanwhile, once all memory has been read."""
    if not torch.cuda.is_available():
        raise UsageError("measuring needs a GPU that PyTorch can use; there is none here")
    if not 0 <= warmup_steps < steps:
        raise UsageError(f"warmup_steps must lie between 0 and steps - 1, not {warmup_steps} of {steps}")
    driver: dict[str, int | None] = {"device_before_bytes": device_used_bytes()}
    torch.cuda.init()
    torch.cuda.synchronize()
    driver["context_bytes"] = process_used_bytes()
    driver["free_with_context_bytes"] = torch.cuda.mem_get_info()[0]
    host = {"before": resident_bytes()}
    torch.manual_seed(seed)
    recorder = _Recorder()
    watcher = PhaseWatcher(recorder.boundary)

    with ExitStack() as alone:
        with watcher.watching():
            started = perf_counter()
            step = factory(**(arguments or {}))
            torch.cuda.synchronize()
            setup_seconds = perf_counter() - started
            recorder.clear()
            setup = take_memory_point()
            driver["setup_bytes"] = process_used_bytes()
            host |= {"setup": resident_bytes(), "pinned_setup": pinned_bytes()}
            alone.enter_context(exclusive())
            with HostWatch() as watch:
                measured = [_measure_step(step, watcher, recorder) for _ in range(steps)]
                recorder.enabled = False
                free_running = _free_running(step, free_running_steps) if free_running_steps else None
        torch.cuda.synchronize()
        host |= {"steps": watch.peaks, "pinned": pinned_bytes()}
        driver["end_bytes"] = process_used_bytes()
        driver["device_end_bytes"] = device_used_bytes()
        stats = torch.cuda.memory_stats()
        final = take_memory_point()
        # Before `then`: a profiler may stay attached and slow launches down.
        watched = _watched(step, watcher, recorder) if watch_host else {}
        if then is not None:
            with watcher.watching():
                then(step, watcher)
    timed = measured[warmup_steps:]
    return RealRun(
        peak_allocated_bytes=_highest("peak_allocated_bytes", setup, final, measured),
        peak_reserved_bytes=_highest("peak_reserved_bytes", setup, final, measured),
        peak_requested_bytes=_highest("peak_requested_bytes", setup, final, measured),
        num_alloc_retries=int(stats["num_alloc_retries"]),
        num_ooms=int(stats["num_ooms"]),
        setup=setup,
        setup_seconds=setup_seconds,
        steps=measured,
        warmup_steps=warmup_steps,
        step_seconds=sum(s.device_seconds for s in timed) / len(timed),
        free_running_step_seconds=free_running,
        driver=driver,
        environment=environment(),
        seed=seed,
        host=host,
        extra={"optimizer_steps": watcher.optimizer_steps},
        watched=watched,
    )


def _measure_step(step: Callable[[], object], watcher: PhaseWatcher, recorder: _Recorder) -> StepMeasurement:
    recorder.clear()
    torch.cuda.synchronize()
    start = torch.cuda.Event(enable_timing=True)
    started = perf_counter()
    start.record()
    watcher.begin_step()
    step()
    watcher.end_step()
    issue_seconds = perf_counter() - started
    torch.cuda.synchronize()
    wall_seconds = perf_counter() - started
    peaks = recorder.phase_peaks()
    seconds = recorder.phase_seconds(start)
    last = recorder.points[-1][1]
    return StepMeasurement(
        peak_allocated_bytes=max(p.peak_allocated_bytes for p in peaks.values()),
        peak_reserved_bytes=max(p.peak_reserved_bytes for p in peaks.values()),
        peak_requested_bytes=max(p.peak_requested_bytes for p in peaks.values()),
        allocated_after_bytes=last.allocated_bytes,
        reserved_after_bytes=last.reserved_bytes,
        phase_peaks=peaks,
        wall_seconds=wall_seconds,
        issue_seconds=issue_seconds,
        device_seconds=sum(seconds.values()),
        phase_seconds=seconds,
        data_seconds=watcher.data_seconds,
    )


def _watched(step: Callable[[], object], watcher: PhaseWatcher, recorder: _Recorder) -> dict[str, Any]:
    recorder.enabled = True

    def times() -> dict[str, Any]:
        timed = _measure_step(step, watcher, recorder)
        return {"device_seconds": timed.device_seconds, "phase_seconds": timed.phase_seconds}

    with watcher.watching():
        return watched_steps(times)


def _free_running(step: Callable[[], object], count: int) -> float:
    torch.cuda.synchronize()
    started = perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (perf_counter() - started) / count


def _highest(name: str, setup: MemoryPoint, final: MemoryPoint, steps: list[StepMeasurement]) -> int:
    return max(int(getattr(part, name)) for part in (setup, final, *steps))


__all__ = ["MemoryPoint", "RealRun", "StepMeasurement", "measure_factory", "merge_points", "take_memory_point"]
