"""Time workloads on the GPU of this machine as a quiet computer would run them.

    python -m corpus.quiet corpus/quiet-1.yaml --out FOLDER

One process a workload. After a warm-up, blocks of steps follow one another without a wait inside. Before each block a
loop in pure Python is timed on every processor, Python's and autograd's threads are put onto the two fastest, and the
loop is timed there again afterwards: what it took over its fastest anywhere says how much the host was disturbed. One
further step is recorded op by op.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Any

from corpus.measure_corpus import Workload, file_lock, load_corpus, preload

BLOCK_SECONDS = 0.12
BLOCKS = 10
WARM_SECONDS = 0.7
LONGEST_SECONDS = 60


def measure(workload: Workload, lock: Path) -> dict[str, Any]:
    """Runs in a process of its own."""
    import torch

    from vramcast.factories import load_factory
    from vramcast.measure import host_speed
    from vramcast.measure.driver_state import environment
    from vramcast.measure.host_benchmark import dispatch_seconds
    from vramcast.measure.op_times import record_op_times
    from vramcast.measure.phases import PhaseWatcher

    torch.manual_seed(0)
    torch.cuda.init()
    step = load_factory(workload.factory)(**workload.args)
    torch.cuda.synchronize()
    with file_lock(lock):
        started = perf_counter()
        warm = 0
        while warm < 5 or perf_counter() - started < WARM_SECONDS:
            step()
            torch.cuda.synchronize()
            warm += 1
        torch.cuda.synchronize()
        begun = perf_counter()
        step()
        torch.cuda.synchronize()
        count = max(2, min(100, round(BLOCK_SECONDS / (perf_counter() - begun))))
        blocks = []
        fastest = min(host_speed._survey().values())
        for _ in range(BLOCKS):
            before = host_speed._survey()
            python, autograd = (sorted(before, key=before.__getitem__) * 2)[:2]
            with host_speed._placed(python, autograd):
                torch.cuda.synchronize()
                begun = perf_counter()
                for _ in range(count):
                    step()
                torch.cuda.synchronize()
                seconds = (perf_counter() - begun) / count
            after = host_speed._survey()
            fastest = min(fastest, *before.values(), *after.values())
            blocks.append(
                {"seconds": seconds, "loops": [before[python], before[autograd], after[python], after[autograd]]}
            )
        peak = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        loops = host_speed._survey()
        quick = min(loops, key=loops.__getitem__)
        with host_speed._placed(quick, quick):
            calls = dispatch_seconds(5)
            again = min(host_speed._loop() for _ in range(3))
        result: dict[str, Any] = {
            "blocks": blocks, "steps_in_block": count, "loop_seconds": fastest, "peak_bytes": peak,
            "dispatch": {"seconds": calls, "loops": [loops[quick], again]}, "environment": environment(),
        }  # fmt: skip
        try:
            watcher = PhaseWatcher(lambda phase: None)
            with watcher.watching():
                result["ops"] = record_op_times(step, watcher)
        except Exception as error:
            result["ops_error"] = repr(error)[:500]
    return result


def summary(record: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step: the median of all blocks, and of the quarter whose host was least disturbed."""
    fastest = record["loop_seconds"]
    slowed = [(geometric_mean(block["loops"]) / fastest, block["seconds"]) for block in record["blocks"]]
    quiet = sorted(slowed)[: max(3, len(slowed) // 3)]
    return {
        "seconds": median(seconds for _, seconds in slowed),
        "quiet_seconds": median(seconds for _, seconds in quiet),
        "fastest_seconds": min(seconds for _, seconds in slowed),
        "slowdown": geometric_mean([slow for slow, _ in slowed]),
        "quiet_slowdown": geometric_mean([slow for slow, _ in quiet]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time; only one of them is timed")
    parser.add_argument("--deadline-seconds", type=float, default=145)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    workloads = load_corpus(options.workloads)
    preload(workloads)
    running: dict[int, Workload] = {}
    waiting, began = list(workloads), time.monotonic()
    while waiting or running:
        while waiting and len(running) < options.jobs and time.monotonic() - began < options.deadline_seconds:
            workload = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                os._exit(_child(workload, options.out))
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
                f"{workload.name:<32} {told['quiet_seconds'] * 1e3:9.3f} ms quiet (host {told['quiet_slowdown']:.2f}), "
                f"{told['seconds'] * 1e3:9.3f} ms (host {told['slowdown']:.2f}), at {time.monotonic() - began:.0f} s",
                flush=True,
            )
    return 0


def _child(workload: Workload, out: Path) -> int:
    signal.alarm(LONGEST_SECONDS)
    head = {"name": workload.name, "factory": workload.factory, "args": workload.args}
    try:
        record = head | measure(workload, out / "lock")
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
