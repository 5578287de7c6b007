"""The allocator's events of a real run, from its first allocation on, with nothing watching the operators.

A dispatch mode may itself change when tensors are freed, and reserved memory depends on that order. This record shows
the order without one, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vramcast.base.factories import Factory
from vramcast.features.measure.driver_state import environment
from vramcast.features.measure.phases import PhaseWatcher

_MAX_HISTORY_ENTRIES = 2 * 10**6


def record_events(
    factory: Factory, arguments: Mapping[str, Any] | None = None, *, steps: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Build the job and run `steps` steps with the allocator's history on. Needs a fresh process.

    `events`, `segments`: see `compact_events`. `cuts`: [number of events so far, phase that ended there].
    `step_starts`: the number of events before each step.
    """
    torch.manual_seed(seed)
    torch.cuda.init()
    device = torch.cuda.current_device()

    def event_count() -> int:
        counters = torch._C._cuda_memoryStats(device)["allocation"]["all"]
        return int(counters["allocated"]) + int(counters["freed"])

    cuts: list[tuple[int, str]] = []
    step_starts: list[int] = []
    watcher = PhaseWatcher(lambda phase: cuts.append((event_count(), phase)))
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MAX_HISTORY_ENTRIES, clear_history=True)
    first_event = event_count()
    with watcher.watching():
        step = factory(**(arguments or {}))
        cuts.clear()
        for _ in range(steps):
            step_starts.append(event_count() - first_event)
            watcher.begin_step()
            step()
            watcher.end_step()
        last_event = event_count()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    entries = torch.cuda.memory._snapshot()["device_traces"][device]
    events, segments = compact_events(entries)
    return {
        "events": events,
        "segments": segments,
        "step_starts": step_starts,
        "cuts": [[count - first_event, phase] for count, phase in cuts],
        "consistent": len(events) == last_event - first_event,
        "peak_allocated_bytes": int(stats["allocated_bytes.all.peak"]),
        "peak_reserved_bytes": int(stats["reserved_bytes.all.peak"]),
        "environment": environment(),
        "seed": seed,
    }


def compact_events(entries: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[list[int]]]:
    """The history as small integers.

    An event is the size of an allocation (positive, or zero), or -(k + 1) for the free of the k-th allocation. A
    segment is [events before it, +size when it is taken from the driver or -size when it is given back, its address].
    """
    events: list[int] = []
    segments: list[list[int]] = []
    live: dict[int, int] = {}
    allocations = 0
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    for entry in entries:
        action = entry["action"]
        if action == "alloc":
            live[entry["addr"]] = allocations
            allocations += 1
            events.append(int(entry["size"]))
        elif action == "free_requested":
            events.append(-(live.pop(entry["addr"]) + 1))
        elif action in signs:
            segments.append([len(events), signs[action] * int(entry["size"]), int(entry["addr"])])
    return events, segments
