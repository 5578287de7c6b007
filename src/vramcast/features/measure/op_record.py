"""An atlas of what each operator allocates on a real GPU, workspaces included.

A dispatch mode sees every operator; PyTorch's allocator history sees every allocation and free. Neither knows
of the other, so the allocator's two running counters are read before and after each operator: the events
numbered in between belong to it. What lies between two operators (tensors that die when their last reference
goes) is kept as a pseudo-operator, "outside".

Known limitations: events on other devices than the current one are not seen; an operator that runs others
inside its own kernel is one entry.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.base.factories import Factory
from vramcast.features.measure.driver_state import environment
from vramcast.features.measure.phases import PhaseWatcher
from vramcast.features.measure.real_run import take_memory_point
from vramcast.trace.arguments import describe_arguments

OUTSIDE = "outside"
_MAX_HISTORY_ENTRIES = 10**6


@dataclass(slots=True)
class _Call:
    """One dispatched operator, with the allocator's event count before and after it."""

    name: str
    signature: str
    phase: str
    first_event: int
    end_event: int


class _OpRecorder(TorchDispatchMode):
    """Notes every operator and its event range; keeps no tensor alive."""

    def __init__(self, device: int) -> None:
        super().__init__()
        self._device = device
        self.calls: list[_Call] = []
        self._open_stretch = 0

    def event_count(self) -> int:
        counters = torch._C._cuda_memoryStats(self._device)["allocation"]["all"]
        return int(counters["allocated"]) + int(counters["freed"])

    def boundary(self, ended_phase: str) -> None:
        for call in self.calls[self._open_stretch :]:
            call.phase = ended_phase
        self._open_stretch = len(self.calls)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # The signature is taken first: an in-place operator may change the shapes it was called with.
        signature = describe_arguments(args, kwargs)
        before = self.event_count()
        result = func(*args, **kwargs)
        self.calls.append(_Call(str(func), signature, "", before, self.event_count()))
        return result


def record_ops(
    factory: Factory, arguments: Mapping[str, Any] | None = None, *, steps: int = 2, seed: int = 0
) -> dict[str, Any]:
    """Build the job, run `steps` steps, and return the atlas (see `build_atlas`). Needs a fresh process."""
    torch.manual_seed(seed)
    torch.cuda.init()
    recorder = _OpRecorder(torch.cuda.current_device())
    watcher = PhaseWatcher(recorder.boundary)
    step_starts: list[int] = []
    with watcher.watching():
        step = factory(**(arguments or {}))
        torch.cuda.synchronize()
        setup = take_memory_point()
        recorder.calls.clear()
        torch.cuda.memory._record_memory_history(
            "all", context=None, max_entries=_MAX_HISTORY_ENTRIES, clear_history=True
        )
        first_event = recorder.event_count()
        for _ in range(steps):
            step_starts.append(len(recorder.calls))
            watcher.begin_step()
            with recorder:
                step()
            watcher.end_step()
        last_event = recorder.event_count()
    torch.cuda.synchronize()
    peak = take_memory_point()
    entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    events = signed_events(entries)
    atlas = build_atlas(recorder.calls, step_starts, events, first_event)
    atlas |= {
        "consistent": len(events) == last_event - first_event,
        "setup_allocated_bytes": setup.allocated_bytes,
        "setup_reserved_bytes": setup.reserved_bytes,
        "peak_allocated_bytes": max(setup.peak_allocated_bytes, peak.peak_allocated_bytes),
        "peak_reserved_bytes": max(setup.peak_reserved_bytes, peak.peak_reserved_bytes),
        "environment": environment(),
        "seed": seed,
    }
    return atlas


def signed_events(entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """The allocator's history as +size for an allocation and -size for a free, in order."""
    signs = {"alloc": 1, "free_requested": -1}
    return [signs[entry["action"]] * int(entry["size"]) for entry in entries if entry["action"] in signs]


def build_atlas(
    calls: Sequence[_Call], step_starts: Sequence[int], events: Sequence[int], first_event: int
) -> dict[str, Any]:
    """Tables of names, signatures and distinct rows [op, signature, phase, events], and each step as row numbers.

    A signature is stored once: a network of equal layers repeats a few hundred rows thousands of times.
    """
    names, signatures, phases, rows = _Table(), _Table(), _Table(), _Table()
    step_rows: list[list[int]] = [[] for _ in step_starts]
    position, step_index = 0, -1

    def add(name: str, signature: str, phase: str, first: int, end: int) -> None:
        key = (names.index(name), signatures.index(signature), phases.index(phase), tuple(events[first:end]))
        step_rows[max(step_index, 0)].append(rows.index(key))

    for number, call in enumerate(calls):
        while step_index + 1 < len(step_starts) and number >= step_starts[step_index + 1]:
            step_index += 1
        first, end = call.first_event - first_event, call.end_event - first_event
        if first > position:
            add(OUTSIDE, "", call.phase, position, first)
        add(call.name, call.signature, call.phase, first, end)
        position = end
    if position < len(events):
        add(OUTSIDE, "", phases.items[-1] if phases.items else "", position, len(events))
    return {
        "ops": names.items,
        "signatures": signatures.items,
        "phases": phases.items,
        "rows": [[op, signature, phase, list(sizes)] for op, signature, phase, sizes in rows.items],
        "steps": step_rows,
    }


class _Table:
    """Distinct values in order of first appearance."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def index(self, value: Any) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.items)
            self.items.append(value)
        return number


def compress_atlas(atlas: dict[str, Any], limit_bytes: int = 2 * 1024 * 1024) -> bytes:
    """Gzipped JSON within the limit: a large atlas loses its first steps, then the order of its operators."""
    data = _gzip_json(atlas)
    if len(data) > limit_bytes and len(atlas["steps"]) > 1:
        last_only = [[]] * (len(atlas["steps"]) - 1) + [atlas["steps"][-1]]
        atlas = atlas | {"steps": last_only, "shortened": "last step only"}
        data = _gzip_json(atlas)
    if len(data) > limit_bytes:
        data = _gzip_json(atlas | {"steps": [], "shortened": "distinct rows only"})
    return data


def _gzip_json(value: Any) -> bytes:
    return gzip.compress(json.dumps(value, separators=(",", ":")).encode(), compresslevel=6, mtime=0)
