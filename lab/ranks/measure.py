"""Measure one rank of each job of `jobs.py` on a real GPU, over torch's fake process group.

    python measure.py OUT_FOLDER [--only NAME ...] [--history NAME ...] [--at-once 4]

Each job runs in a process of its own; OUT_FOLDER/NAME.json holds its figures, and with --history
OUT_FOLDER/NAME.history.json.gz what its allocator did.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ACTIONS = {
    "alloc": "a", "free_requested": "r", "free_completed": "c", "segment_alloc": "S", "segment_free": "F",
    "segment_map": "M", "segment_unmap": "U", "oom": "o", "snapshot": "s",
}  # fmt: skip
SECONDS = 110


def complete_fake_group() -> None:
    """What torch's fake group leaves out and DDP needs: futures with a value, and ranks that agree on shapes."""
    import torch
    import torch.distributed as dist
    import torch.distributed.utils
    from torch._C._distributed_c10d import _create_work_from_future
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    all_reduce = dist.all_reduce

    def with_future(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = all_reduce(tensor, *args, **kwargs)
        if work is None:
            return None
        future: Any = torch.futures.Future()
        future.set_result([tensor])
        return _create_work_from_future(future)

    dist.all_reduce = with_future  # type: ignore[assignment]
    parallel = torch.nn.parallel.DistributedDataParallel
    register, forward = parallel.register_comm_hook, parallel.forward
    hooked: set[int] = set()

    def register_once(self: Any, state: Any, hook: Any) -> None:
        hooked.add(id(self))
        register(self, state, hook)

    def forward_with_hook(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in hooked:
            register_once(self, None, default_hooks.allreduce_hook)
        return forward(self, *args, **kwargs)

    parallel.register_comm_hook, parallel.forward = register_once, forward_with_hook  # type: ignore[method-assign]
    for module in (torch.distributed.utils, torch.nn.parallel.distributed):
        if hasattr(module, "_verify_param_shape_across_processes"):
            module._verify_param_shape_across_processes = lambda *args, **kwargs: True


def measure(name: str, out: Path, with_history: bool) -> None:
    import more_jobs
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import jobs

    world, rank, start = (jobs.JOBS | more_jobs.JOBS)[name]
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    complete_fake_group()
    torch.manual_seed(0)
    on_gpu = jobs.DEVICE == "cuda"
    if on_gpu:
        torch.cuda.set_device(0)
    if with_history and on_gpu:
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python", context=None)
    rows: list[dict[str, Any]] = []
    error = None
    began = time.time()
    marks = []
    times: list[dict[str, float]] = []
    last = time.perf_counter()
    try:
        for step in start():
            del step
            if not on_gpu:
                continue
            if with_history:
                marks.append(len(torch.cuda.memory._snapshot()["device_traces"][0]))
            rows.append(
                {
                    "allocated": torch.cuda.max_memory_allocated(),
                    "reserved": torch.cuda.max_memory_reserved(),
                    "allocated_now": torch.cuda.memory_allocated(),
                    "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
                }
            )
            if len(rows) >= 4:  # how far the host is ahead of the card
                now = time.perf_counter()
                torch.cuda.synchronize()
                after = time.perf_counter()
                times.append({"host": round(now - last, 5), "ahead": round(after - now, 5)})
                last = after
    except Exception:
        error = traceback.format_exc()[-3000:]
    result = {
        "job": name,
        "world": world,
        "rank": rank,
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name() if on_gpu else "cpu",
        "seconds": round(time.time() - began, 2),
        "steps": rows,
        "marks": marks,
        "times": times,
        "error": error,
    }
    (out / f"{name}.json").write_text(json.dumps(result, indent=1))
    if with_history and on_gpu:
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        limit = marks[2] if len(marks) > 2 else len(entries)
        kept = [e for e in entries[:limit] if e["action"] in ACTIONS]
        data = {
            "format": "columns",
            "actions": "".join(ACTIONS[e["action"]] for e in kept),
            "addresses": [0 if e["action"] == "oom" else e["addr"] for e in kept],
            "sizes": [e["size"] for e in kept],
            "streams": [e["stream"] for e in kept],
        }
        (out / f"{name}.history.json.gz").write_bytes(gzip.compress(json.dumps(data).encode(), 6))
    os._exit(0)


def run(name: str, out: Path, history: bool) -> None:
    command = [sys.executable, __file__, str(out), "--child", name, *(["--history", name] if history else [])]
    with open(out / f"{name}.log", "w") as log, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=SECONDS, check=False)
    path = out / f"{name}.json"
    if not path.exists():
        print(f"{name:26s} NO RESULT: {(out / f'{name}.log').read_text()[-300:]!r}", flush=True)
        return
    result = json.loads(path.read_text())
    steps = result["steps"]
    last = f"{steps[-1]['allocated']:>14,} {steps[-1]['reserved']:>14,}" if steps else ""
    error = (result["error"] or "").strip().splitlines()[-1:] or ""
    print(f"{name:26s} {len(steps)} steps {last} {result['seconds']:6.1f}s {error}", flush=True)


def main() -> None:
    import more_jobs

    import jobs

    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--history", nargs="*", default=[])
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--child")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.child:
        measure(options.child, options.out, options.child in options.history)
    names = options.only or [*jobs.JOBS, *more_jobs.JOBS]
    # FSDP1 frees by events, so what else runs on the card could matter: one after the other.
    alone = [name for name in names if name.startswith("fsdp1")]
    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(lambda n: run(n, options.out, n in options.history), [n for n in names if n not in alone]))
    for name in alone:
        run(name, options.out, name in options.history)


if __name__ == "__main__":
    main()
