"""Run a script on the GPU of this machine and print what the allocator counted: `on_card.py SCRIPT [HISTORY]`.

With a second argument the allocator's events are kept there too
(`vramcast.features.measure.event_record.compact_events`).
"""

from __future__ import annotations

import gzip
import json
import runpy
import sys
import traceback
from typing import Any

import torch


def main(script: str, history: str | None = None) -> int:
    if history is not None:  # else the script itself initializes CUDA, and may set the allocator's options before
        torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000)
    sys.argv = [script]
    failed = None
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:  # what was taken until then is worth knowing too
        failed = traceback.format_exc()
    torch.cuda.synchronize()
    print(json.dumps(_record(failed)), flush=True)
    if history is not None:
        with gzip.open(history, "wt") as file:
            json.dump(_events(), file)
    return int(failed is not None)


def _record(failed: str | None) -> dict[str, Any]:
    stats = torch.cuda.memory_stats()
    record = {
        "outcome": "measured" if failed is None else "failed",
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
    }
    return record if failed is None else record | {"message": failed[-1500:]}


def _events() -> dict[str, Any]:
    """The events, and the streams of those allocations that were made on another than the first one's."""
    from vramcast.features.measure.event_record import compact_events

    entries = [entry for trace in torch.cuda.memory._snapshot()["device_traces"] for entry in trace]
    events, segments = compact_events(entries)
    streams = [entry["stream"] for entry in entries if entry["action"] == "alloc"]
    others = {number: stream for number, stream in enumerate(streams) if stream != streams[0]}
    return {"events": events, "segments": segments, "streams": others}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
