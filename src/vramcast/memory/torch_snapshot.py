"""A predicted run as the snapshot that torch.cuda.memory._dump_snapshot writes, for PyTorch's own memory viewer
(pytorch.org/memory_viz, torch.cuda._memory_viz).

Frames stand for what a trace knows of a block: the op, its module, then kind, tensor and phase.
"""

from __future__ import annotations

from typing import Any

from vramcast.allocator.snapshot import Segment
from vramcast.memory.prediction import Prediction
from vramcast.memory.replay import Replay, replay
from vramcast.trace.schema import ALLOC, FREE, KINDS, StepTrace


def torch_snapshot(prediction: Prediction) -> dict[str, Any] | None:
    """The traced steps on a card without a limit; None where the prediction does not have its trace."""
    trace = prediction.trace
    if trace is None:
        return None
    run = replay(trace, prediction.allocator_conf, None, with_layout=True)
    alive = {run.addresses[block]: block for block in run.live_blocks(run.n_events - 1)}
    return {
        "segments": [_segment(trace, segment, alive) for segment in run.segments],
        "device_traces": [_entries(run)],
        "allocator_settings": {},
    }


def _entries(run: Replay) -> list[dict[str, Any]]:
    trace = run.trace
    taken: dict[int, list[dict[str, Any]]] = {}
    for event, change in run.segment_events:
        entry = _entry(change.action, change.address, change.size, change.stream, event, [])
        taken.setdefault(event, []).append(entry)
    entries: list[dict[str, Any]] = []
    for event in range(run.n_events):
        entries += taken.get(event, ())
        code, block = trace.event_kind[event], trace.event_arg[event]
        if code not in (ALLOC, FREE) or block in run.refused_blocks or not trace.requested_bytes[block]:
            continue
        address, size, stream = run.addresses[block], trace.requested_bytes[block], trace.stream[block]
        actions = ("alloc",) if code == ALLOC else ("free_requested", "free_completed")
        frames = _frames(trace, block)
        entries += [_entry(action, address, size, stream, event, frames) for action in actions]
    return entries


def _entry(
    action: str, address: int, size: int, stream: int, event: int, frames: list[dict[str, Any]]
) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": stream, "time_us": event, "frames": frames}


def _frames(trace: StepTrace, block: int) -> list[dict[str, Any]]:
    shape = trace.shapes[trace.shape[block]]
    kind = KINDS[trace.kind[block]]
    return [
        {"name": trace.ops[trace.op[block]], "filename": trace.modules[trace.module[block]] or "no module", "line": 0},
        {
            "name": f"{kind} {shape}".rstrip(),
            "filename": trace.phases[trace.phase[block]],
            "line": trace.step[block] + 1,
        },
    ]


def _segment(trace: StepTrace, segment: Segment, alive: dict[int, int]) -> dict[str, Any]:
    blocks = [
        {
            "address": one.address,
            "size": one.size_bytes,
            "requested_size": one.requested_bytes,
            "state": "active_allocated" if one.allocated else "inactive",
            "frames": _frames(trace, alive[one.address]) if one.allocated and one.address in alive else [],
        }
        for one in segment.blocks
    ]
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": segment.allocated_bytes,
        "active_size": segment.allocated_bytes,
        "requested_size": sum(one.requested_bytes for one in segment.blocks),
        "stream": segment.stream,
        "segment_type": segment.pool,
        "segment_pool_id": (0, 0),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": blocks,
    }
