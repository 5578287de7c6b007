"""The highest allocated memory while each module's forward pass ran: what can be measured on a real GPU too."""

from __future__ import annotations

from vramcast.memory.replay import Replay
from vramcast.trace.schema import ALLOC

FORWARD = "forward"


def forward_peaks(replay: Replay, *, depth: int = 3) -> dict[str, int]:
    """Peaks by dotted module name, at most `depth` parts long, over the last step that has a forward pass."""
    trace = replay.trace
    if FORWARD not in trace.phases:
        return {}
    forward = list(trace.phases).index(FORWARD)
    blocks = [block for block in range(trace.n_blocks) if trace.phase[block] == forward]
    if not blocks:
        return {}
    step = max(trace.step[block] for block in blocks)
    peaks: dict[str, int] = {}
    columns = zip(trace.event_kind, trace.event_arg, replay.allocated_bytes, strict=False)
    for code, block, allocated in columns:
        if code != ALLOC or trace.phase[block] != forward or trace.step[block] != step:
            continue
        parts = trace.modules[trace.module[block]].split(".")
        for length in range(1, min(depth, len(parts)) + 1):
            name = ".".join(parts[:length])
            if name and allocated > peaks.get(name, 0):
                peaks[name] = allocated
    return peaks
