"""How long each operator of a step takes on a real GPU, from the kernels it launches.

A dispatch mode marks every operator for PyTorch's profiler; a kernel belongs to the operator whose mark was open when
the host launched it. Kernels launched outside any operator (a fused optimizer of another library) are counted together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.features.measure.phases import PhaseWatcher
from vramcast.trace.arguments import describe_arguments

_MARK = "vramcast:"
_KERNEL_NAME_LENGTH = 80


@dataclass(slots=True)
class OpTime:
    """One dispatched operator and what it ran on the device."""

    name: str
    signature: str
    phase: str
    device_ns: int = 0
    kernels: list[str] = field(default_factory=list)


class _Marker(TorchDispatchMode):
    def __init__(self, watcher: PhaseWatcher) -> None:
        super().__init__()
        self._watcher = watcher
        self.calls: list[OpTime] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        signature = describe_arguments(args, kwargs)
        mark = f"{_MARK}{len(self.calls)}"
        self.calls.append(OpTime(str(func), signature, self._watcher.current))
        with record_function(mark):
            return func(*args, **kwargs)


def record_op_times(step: Callable[[], object], watcher: PhaseWatcher) -> dict[str, Any]:
    """Run one step, which must have run before, and return tables of distinct operators with their times."""
    torch.cuda.synchronize()
    marker = _Marker(watcher)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        watcher.begin_step()
        with marker:
            step()
        watcher.end_step()
        torch.cuda.synchronize()
    events = list(profiler.profiler.kineto_results.events())
    outside_ns = attribute_kernels(marker.calls, events)
    return tables(marker.calls) | {"outside_ns": outside_ns}


def attribute_kernels(calls: Sequence[OpTime], events: Sequence[Any]) -> int:
    """Add each kernel's time to the call that launched it; returns the time of those that none did."""
    cuda = torch._C._autograd.DeviceType.CUDA
    starts: list[tuple[int, int, int]] = []
    launches: dict[int, int] = {}
    kernels: list[tuple[int, str, int]] = []
    for event in events:
        name = event.name()
        on_device = event.device_type() == cuda
        if name.startswith(_MARK):
            if not on_device:
                starts.append((event.start_ns(), event.end_ns(), int(name.removeprefix(_MARK))))
        elif on_device:
            kernels.append((event.correlation_id(), name, event.duration_ns()))
        elif name.startswith("cu"):
            launches[event.correlation_id()] = event.start_ns()
    starts.sort()
    begins = [start for start, _, _ in starts]
    outside_ns = 0
    for correlation, name, duration in kernels:
        at = launches.get(correlation)
        place = bisect_right(begins, at) - 1 if at is not None else -1
        if place < 0 or at is None or at > starts[place][1]:
            outside_ns += duration
            continue
        call = calls[starts[place][2]]
        call.device_ns += duration
        call.kernels.append(name[:_KERNEL_NAME_LENGTH])
    return outside_ns


def tables(calls: Sequence[OpTime]) -> dict[str, Any]:
    """Distinct (operator, signature, phase), each with its count, its shortest and its mean device time in ns, and the
    kernels of its first call; and the step as numbers of those rows."""
    numbers: dict[tuple[str, str, str], int] = {}
    rows: list[dict[str, Any]] = []
    step = []
    for call in calls:
        key = (call.name, call.signature, call.phase)
        if key not in numbers:
            numbers[key] = len(rows)
            rows.append(
                {"op": call.name, "args": call.signature, "phase": call.phase, "count": 0, "total_ns": 0,
                 "least_ns": call.device_ns, "kernels": call.kernels}
            )  # fmt: skip
        row = rows[numbers[key]]
        row["count"] += 1
        row["total_ns"] += call.device_ns
        row["least_ns"] = min(row["least_ns"], call.device_ns)
        step.append(numbers[key])
    return {"rows": rows, "step": step}
