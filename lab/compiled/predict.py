"""Run one workload on the virtual card and write down what each step took.

python -m lab.compiled.predict NAME [--host FACTOR] [--events FILE] [--trace FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import vramcast
from vramcast.timing.host import undisturbed_host
from vramcast.timing.step import predict_step
from vramcast.trace.schema import ALLOC, BLOCK_EVENTS, FREE
from vramcast.trace.storage import save

sys.path.insert(0, str(Path(__file__).parent))
import workloads  # type: ignore[import-not-found]


def predict(
    name: str, gpu: str = "h200", events: Path | None = None, saved: Path | None = None, host: float = 1.0
) -> dict[str, Any]:
    """`host`: how many times as long the host took for which `step_seconds_there` holds."""
    begin = time.time()
    record = workloads.RECORD
    marks: list[int] = []
    with vramcast.virtual_gpu(gpu) as card:
        record.after_step = lambda: marks.append(card.n_events)
        torch.manual_seed(0)
        workloads.WORKLOADS[name]()
    trace = card.trace()
    if events is not None:
        _write_events(trace, events, marks)
    if saved is not None:
        save(trace, saved)
    step = predict_step(trace)
    there = predict_step(trace, host=undisturbed_host().scaled(host))
    notes = sorted({f"{note.topic}: {note.text}" for note in trace.notes})
    return {"name": name, "steps": record.steps, "seconds": round(time.time() - begin, 1),
            "step_seconds": None if step is None else step.seconds,
            "step_seconds_there": None if there is None else there.seconds, "notes": notes}  # fmt: skip


def _write_events(trace: Any, path: Path, marks: list[int]) -> None:
    """One line for each allocation and free: bytes, number, op, shape."""
    ends = set(marks)
    with path.open("w") as out:
        for number, (kind, block) in enumerate(zip(trace.event_kind, trace.event_arg, strict=True)):
            if number in ends:
                print("-- step", file=out)
            if kind in BLOCK_EVENTS:
                what = f"{trace.ops[trace.op[block]]} {trace.shapes[trace.shape[block]]} s{trace.stream[block]}"
                print({ALLOC: "+", FREE: "-"}.get(kind, "~"), trace.requested_bytes[block], block, what, file=out)
            else:
                print("=", trace.labels[block], file=out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--host", type=float, default=1.0, help="also for a host that takes so many times as long")
    parser.add_argument("--events", type=Path, help="write allocations and frees here, one a line")
    parser.add_argument("--trace", type=Path, help="save the trace here")
    arguments = parser.parse_args()
    found = predict(arguments.name, arguments.gpu, arguments.events, arguments.trace, arguments.host)
    print(json.dumps(found))
