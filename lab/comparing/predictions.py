"""Predict the measured workloads of the corpus on a virtual card, each in a child process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.comparing.errors import relative_error
from lab.comparing.times import TimeFigures, time_figures
from lab.measuring.children import Outcome, run_each
from lab.measuring.import_measurements import FOLDER, load
from lab.measuring.measure_corpus import load_everything, preload
from lab.measuring.recorded import Recorded, identity

STEPS = 3
"""Optimizer state exists from the second step on, and the third shows that the allocator has settled."""
TIMEOUT_SECONDS = 240.0

Figures = tuple[int, int, int, "TimeFigures | None"]
"""Peak allocated, peak reserved, bytes on the device, and the time of a step."""


@dataclass(frozen=True)
class Measured(Recorded):
    """One measured workload."""

    allocator_conf: str
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int | None
    """What NVML said of the process at the end, context and kernels included."""

    @property
    def family(self) -> str:
        return self.tags[0]

    @property
    def convolution(self) -> bool:
        return "convolution" in self.tags

    @property
    def held_out(self) -> bool:
        """The second set; see FIRST_LOOK in lab/pages/page.py."""
        return "heldout" in self.tags

    @property
    def drawn(self) -> bool:
        """Drawn at random (lab/measuring/draw.py), predicted before it was measured."""
        return "drawn" in self.tags


@dataclass(frozen=True)
class Comparison:
    """A measured workload beside its prediction; `error` says why there is none."""

    measured: Measured
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    seconds: float
    peak_rss_bytes: int
    error: str = ""
    time: TimeFigures | None = None

    @property
    def reserved_error(self) -> float:
        return relative_error(self.reserved_bytes, self.measured.reserved_bytes)

    @property
    def allocated_error(self) -> float:
        return relative_error(self.allocated_bytes, self.measured.allocated_bytes)

    @property
    def device_error(self) -> float | None:
        if self.measured.device_bytes is None:
            return None
        return relative_error(self.device_bytes, self.measured.device_bytes)


@dataclass(frozen=True)
class Recording:
    """One file of measurements: a card, a torch, and what ran there."""

    path: Path
    environment: dict[str, Any]
    workloads: tuple[Measured, ...]


def recordings(folder: Path = FOLDER) -> list[Recording]:
    return [_recording(path) for path in sorted(folder.glob("*.jsonl"))]


def _recording(path: Path) -> Recording:
    environment, records = load(path)
    gpu = re.sub(r"-torch.*", "", path.stem)
    workloads = []
    for record in records.values():
        driver = record.get("driver", {})
        workloads.append(
            Measured(
                **identity(record, gpu),
                allocator_conf=environment.get("allocator_conf", ""),
                allocated_bytes=record["peak_allocated_bytes"],
                reserved_bytes=record["peak_reserved_bytes"],
                device_bytes=driver.get("end_bytes"),
            )
        )
    return Recording(path, environment, tuple(workloads))


def missing_by_name() -> dict[str, list[str]]:
    """What each workload of the corpus needs and this machine has not."""
    return {workload.name: workload.missing for workload in load_everything()}


def run_virtually(workload: Measured, steps: int = STEPS) -> Any:
    """The prediction for a workload; runs in this process."""
    import torch

    from vramcast.base.factories import load_factory
    from vramcast.card.device.context import virtual_gpu

    factory = load_factory(workload.factory)
    with virtual_gpu(workload.gpu, allocator_conf=workload.allocator_conf) as gpu:
        torch.manual_seed(workload.seed)
        gpu.log_ops(after_steps=None)
        step = factory(**workload.args)
        for _ in range(steps - 1):
            step()
        with gpu.iteration():
            step()
    return gpu.prediction()


def _figures(workload: Measured) -> Figures:
    prediction = run_virtually(workload)
    peaks = prediction.peak_allocated_bytes, prediction.peak_reserved_bytes, prediction.device_bytes
    return *peaks, time_figures(prediction.trace)


def import_heavy(workloads: Iterable[Measured]) -> None:
    """Import the libraries of the workloads and the virtual card once, in the parent. They are no garbage, so the forks
    need not search them."""
    import gc
    import importlib

    preload([w for w in load_everything() if w.factory in {measured.factory for measured in workloads}])
    for name in ("torch._dynamo", "vramcast.card.device.context", "vramcast.memory", "vramcast.base.factories"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def compare_each(
    workloads: Iterable[Measured],
    *,
    jobs: int = 2,
    timeout_seconds: float = TIMEOUT_SECONDS,
    work: Callable[[Measured], Figures] = _figures,
) -> Iterator[Comparison]:
    """Yields as they finish."""
    workloads = list(workloads)
    import_heavy(workloads)
    for measured, outcome in run_each(work, workloads, jobs=jobs, timeout_seconds=timeout_seconds):
        yield _comparison(measured, outcome)


def _comparison(measured: Measured, outcome: Outcome) -> Comparison:
    allocated, reserved, device, time = outcome.value if not outcome.error else (0, 0, 0, None)
    return Comparison(
        measured, allocated, reserved, device, outcome.seconds, outcome.peak_rss_bytes, outcome.error, time
    )
