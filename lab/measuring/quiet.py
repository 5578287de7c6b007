"""Time workloads on the GPU of this machine as a quiet computer would run them.

    python -m lab.measuring.quiet lab/data/quiet-1.yaml --out FOLDER

One process a workload. After a warm-up come short blocks of steps, which follow one another without a wait inside.
Where others share the computer, its processors are slow for a while and fast again; so Python's and autograd's threads
are put onto the two processors that are fastest at the moment, and a loop in pure Python is timed before and after each
block.
The blocks that nothing disturbed count (`quiet_seconds`). With `--ops` one further step is recorded op by op.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

from lab import DATA
from lab.measuring.measure_corpus import Workload, file_lock, load_corpus, preload

BLOCK_SECONDS = 0.025
BLOCKS_IN_A_ROW = 3
MEASURED_SECONDS = 1.2
WARM_SECONDS = 0.35
LONGEST_SECONDS = 60
UNDISTURBED = 1.1
"""A block counts as quiet where the loop took at most this times its fastest, before and after it."""
FEWEST = 4
RECORDS = DATA / "records" / "quiet"


def quiet_runs(name: str) -> dict[str, dict[str, float]]:
    """What was measured of the workloads of a recorded set (`quiet-1`), summed up."""
    (path,) = RECORDS.glob(f"*-{name}.jsonl.gz")
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    fastest = min(record["loop_seconds"] for record in records)
    return {record["name"]: summary(record, fastest) for record in records}


def keep(folder: Path, out: Path) -> None:
    """Gather what was measured into one file, without ops."""
    records = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob("*.json.gz"))]
    lines = [json.dumps({key: value for key, value in record.items() if key != "ops"}) for record in records]
    out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def measure(workload: Workload, lock: Path, *, ops: bool = False) -> dict[str, Any]:
    """Runs in a process of its own."""
    import torch

    from vramcast.base.factories import load_factory
    from vramcast.features.measure import host_speed
    from vramcast.features.measure.driver_state import environment
    from vramcast.features.measure.host_benchmark import dispatch_seconds

    torch.manual_seed(0)
    torch.cuda.init()
    allowed = os.sched_getaffinity(0)
    # What is set up beside a measurement stays on a few processors.
    os.sched_setaffinity(0, set(sorted(allowed)[-max(1, len(allowed) // 4) :]))
    step = load_factory(workload.factory)(**workload.args)
    torch.cuda.synchronize()

    def timed(count: int) -> float:
        begun = perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        return (perf_counter() - begun) / count

    with file_lock(lock):
        os.sched_setaffinity(0, allowed)
        started, warm = perf_counter(), 0
        while warm < 5 or perf_counter() - started < WARM_SECONDS:
            seconds = timed(1)
            warm += 1
        count = max(1, min(100, round(BLOCK_SECONDS / seconds)))
        blocks: list[dict[str, Any]] = []
        fastest = min(host_speed._survey().values())
        started = perf_counter()
        while perf_counter() - started < MEASURED_SECONDS or len(blocks) < 2 * BLOCKS_IN_A_ROW:
            loops = host_speed._survey()
            fastest = min(fastest, *loops.values())
            python, autograd = (sorted(loops, key=loops.__getitem__) * 2)[:2]
            with host_speed._placed(python, autograd):
                for _ in range(BLOCKS_IN_A_ROW):
                    before = host_speed._loop()
                    blocks.append({"seconds": timed(count), "loops": [before, host_speed._loop()]})
        peak = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        loops = host_speed._survey()
        quick = min(loops, key=loops.__getitem__)
        with host_speed._placed(quick, quick):
            calls = dispatch_seconds(3)
            again = min(host_speed._loop() for _ in range(3))
        result: dict[str, Any] = {
            "blocks": blocks, "steps_in_block": count, "loop_seconds": fastest, "peak_bytes": peak,
            "dispatch": {"seconds": calls, "loops": [loops[quick], again]}, "environment": environment(),
        }  # fmt: skip
        if ops:
            result["ops"] = _ops(step)
    return result


def _ops(step: Any) -> dict[str, Any]:
    from vramcast.features.measure.op_times import record_op_times
    from vramcast.features.measure.phases import PhaseWatcher

    watcher = PhaseWatcher(lambda phase: None)
    with watcher.watching():
        return record_op_times(step, watcher)


def summary(record: dict[str, Any], fastest: float | None = None) -> dict[str, float]:
    """Seconds of a step: the median of all blocks, and of those that nothing disturbed. Where too few are, a tenth of
    all blocks is faster than `quiet_seconds`. `fastest`: the loop on a processor that nobody else uses."""
    fastest = min(fastest or record["loop_seconds"], record["loop_seconds"])
    blocks = [(max(block["loops"]) / fastest, block["seconds"]) for block in record["blocks"]]
    every = sorted(seconds for _, seconds in blocks)
    quiet = [seconds for slow, seconds in blocks if slow <= UNDISTURBED]
    return {
        "seconds": median(every),
        "quiet_seconds": median(quiet) if len(quiet) >= FEWEST else every[len(every) // 10],
        "quiet_blocks": len(quiet),
        "blocks": len(every),
        "slowdown": geometric_mean([slow for slow, _ in blocks]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; only one of them is timed")
    parser.add_argument("--deadline-seconds", type=float, default=145)
    parser.add_argument("--ops", action="store_true", help="record one more step op by op")
    parser.add_argument("--only", default="", help="regular expression searched in names")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    workloads = [w for path in options.workloads for w in load_corpus(path) if re.search(options.only, w.name)]
    preload(workloads)
    running: dict[int, Workload] = {}
    waiting, began = list(workloads), time.monotonic()
    while waiting or running:
        while waiting and len(running) < options.jobs and time.monotonic() - began < options.deadline_seconds:
            workload = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                os._exit(_child(workload, options.out, options.ops))
            running[pid] = workload
        if not running:
            print(f"not started: {', '.join(w.name for w in waiting)}", flush=True)
            break
        pid, _ = os.wait()
        workload = running.pop(pid)
        path = options.out / f"{workload.name}.json.gz"
        record = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {"error": "it died"}
        if "error" in record:
            print(f"{workload.name:<32} {record['error']}", flush=True)
        else:
            told = summary(record)
            print(
                f"{workload.name:<32} {told['quiet_seconds'] * 1e3:9.3f} ms in {told['quiet_blocks']} quiet blocks, "
                f"{told['seconds'] * 1e3:9.3f} ms in {told['blocks']} (loop {told['slowdown']:.2f}), "
                f"at {time.monotonic() - began:.0f} s",
                flush=True,
            )
    return 0


def _child(workload: Workload, out: Path, ops: bool) -> int:
    signal.alarm(LONGEST_SECONDS)
    head = {"name": workload.name, "factory": workload.factory, "args": workload.args}
    try:
        record = head | measure(workload, out / "lock", ops=ops)
    except BaseException as error:
        record = head | {
            "error": f"{type(error).__name__}: {str(error)[:300]}",
            "traceback": traceback.format_exc()[-2000:],
        }
    data = gzip.compress(json.dumps(record, separators=(",", ":")).encode(), mtime=0)
    (out / f"{workload.name}.json.gz").write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
