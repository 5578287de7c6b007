"""Measure, on a CUDA GPU, the memory that library calls allocate inside PyTorch operators.

    python -m lab.measuring.sweep_workspaces --out DIR --deadline-seconds 240 --jobs 12

Writes DIR/convolutions.csv.gz, DIR/operators.csv.gz, DIR/heuristics.csv.gz and DIR/device.jsonl. Case number i of a seed is always the
same case, and cases are drawn at random, so a run cut short is a fair sample of a longer one. Files are flushed
every few seconds: what was measured before a kill can be read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import queue
import random
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch  # imported before forking, so that children start at once; CUDA is only initialised in children

from lab.measuring.workspace_sweep import convolutions, device, heuristics, operators

STUCK_SECONDS = 25
CACHE_LIMIT_BYTES = 7 << 30
CONVOLUTION_SHARE = 0.45
CHUNK = 8
HEURISTICS_SHARE = 0.4


def _warm_up() -> None:
    """Take the library handles' own workspaces now, so that no measured case contains them."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        a = torch.zeros(64, 64, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.linear(a, a, a[0]).sum().backward()
        torch.bmm(a[None], a[None]).sum().backward()
    torch.cuda.synchronize()


def _work(worker: int, seed: int, counter: Any, current: Any, results: Any, deadline: float) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _warm_up()
    while time.time() < deadline:
        with counter.get_lock():
            first = counter.value
            counter.value += CHUNK
        for index in range(first, first + CHUNK):
            if time.time() >= deadline:
                break
            rng = random.Random(f"{seed}/{index}")
            is_convolution = rng.random() < CONVOLUTION_SHARE
            kind = "convolutions" if is_convolution else "operators"
            current[2 * worker], current[2 * worker + 1] = float(index), time.time()
            row = ""
            try:
                if is_convolution:
                    row = convolutions.measure(index, convolutions.draw(rng))
                else:
                    row = operators.measure(index, rng)
            except torch.OutOfMemoryError:
                results.put(("problem", f"{index}: out of memory while preparing"))
            except Exception as failure:  # one bad case must not end the sweep
                where = traceback.extract_tb(failure.__traceback__)[-1]
                results.put(
                    (
                        "problem",
                        f"{index} {kind}: {type(failure).__name__} {failure} ({where.name}:{where.lineno})"[:400],
                    )
                )
                torch.cuda.synchronize()  # raises again, and ends this worker, if the context is broken
            if row:
                results.put((kind, row))
            if torch.cuda.memory_reserved() > CACHE_LIMIT_BYTES:
                torch.cuda.empty_cache()
    results.put(("done", str(worker)))
    results.close()
    results.join_thread()
    os._exit(0)  # a context is torn down faster by the driver than by destructors


def _ask(worker: int, seed: int, counter: Any, current: Any, results: Any, deadline: float) -> None:
    """A worker that only asks cuDNN's heuristics; it runs no kernel."""
    torch.set_num_threads(1)
    torch.zeros(1, device="cuda")
    library = heuristics.DeviceHeuristics()
    while time.time() < deadline:
        with counter.get_lock():
            first = counter.value
            counter.value += 64
        rows = []
        for index in range(first, first + 64):
            current[2 * worker], current[2 * worker + 1] = float(index), time.time()
            if time.time() >= deadline:
                break
            rows.append(heuristics.measure(library, seed, index))
        if rows:
            results.put(("heuristics", "\n".join(rows)))
    results.put(("done", str(worker)))
    results.close()
    results.join_thread()
    os._exit(0)


def _sequence(name: str, baseline: int, results: Any) -> None:
    for row in device.run_sequence(name, baseline):
        results.put(row)
    results.put(None)
    results.close()
    results.join_thread()
    os._exit(0)


def measure_device(out: Path, context: Any, until: float) -> None:
    """Fresh processes one after another, alone on the card."""
    nvml = device.Nvml()
    with (out / "device.jsonl").open("w") as file:
        properties = {"torch": torch.__version__, "cuda": torch.version.cuda}
        file.write(json.dumps({"versions": properties, "idle_used_bytes": nvml.used_bytes()}) + "\n")
        for name in device.SEQUENCES:
            if time.time() > until:
                file.write(json.dumps({"skipped": name}) + "\n")
                continue
            baseline = nvml.used_bytes()
            results = context.Queue()
            process = context.Process(target=_sequence, args=(name, baseline, results))
            process.start()
            give_up = time.time() + STUCK_SECONDS
            while True:
                try:
                    row = results.get(timeout=0.5)
                except queue.Empty:
                    if process.is_alive() and time.time() < give_up:
                        continue
                    row = None
                    file.write(json.dumps({"sequence": name, "ended": process.exitcode}) + "\n")
                if row is None:
                    break
                file.write(json.dumps(row) + "\n")
                file.flush()
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()


def sweep(out: Path, context: Any, seed: int, jobs: int, deadline: float, work: Any, headers: dict[str, str]) -> None:
    """Random cases in `jobs` processes until the deadline; a worker that dies or hangs is replaced."""
    counter = context.Value("q", 0)
    current = context.Array("d", 2 * jobs)
    results = context.Queue()
    files = {name: gzip.open(out / f"{name}.csv.gz", "wt", compresslevel=5) for name in headers}
    for name, header in headers.items():
        files[name].write(header + "\n")
    problems = (out / "problems.txt").open("a")

    def start(worker: int) -> Any:
        current[2 * worker], current[2 * worker + 1] = -1.0, time.time() + 60
        process = context.Process(target=work, args=(worker, seed, counter, current, results, deadline))
        process.start()
        return process

    workers = [start(worker) for worker in range(jobs)]
    finished: set[int] = set()
    counts = {**dict.fromkeys(headers, 0), "problem": 0}
    deaths = 0
    flushed = checked = time.time()
    while len(finished) < jobs and time.time() < deadline + 8:
        try:
            kind, text = results.get(timeout=0.5)
        except queue.Empty:
            kind, text = "", ""
        if kind == "done":
            finished.add(int(text))
        elif kind:
            counts[kind] += 1 + text.count("\n")
            (problems if kind == "problem" else files[kind]).write(text + "\n")
        now = time.time()
        if now - flushed > 4:
            for file in (*files.values(), problems):
                file.flush()
            flushed = now
            print(f"{deadline - now:6.0f} s left  {counts}", flush=True)
        if now - checked < 1:
            continue
        checked = now
        for worker, process in enumerate(workers):
            stuck = process.is_alive() and now - current[2 * worker + 1] > STUCK_SECONDS
            if worker in finished or (process.is_alive() and not stuck):
                continue
            if stuck:
                process.kill()
            process.join(timeout=3)
            deaths += 1
            if deaths >= jobs and not any(counts.values()):
                print(f"{deaths} workers died before the first result: giving up", flush=True)
                deadline = now - 10
            problems.write(f"{current[2 * worker]:.0f}: {'stuck' if stuck else 'died'}, exit {process.exitcode}\n")
            if now < deadline - 5:
                workers[worker] = start(worker)
            else:
                finished.add(worker)
    for file in (*files.values(), problems):
        file.close()
    for process in workers:
        if process.is_alive():
            process.kill()
    print(f"finished {counts}", flush=True)


def _can_fork(context: Any) -> bool:
    """False if something in this process has touched CUDA, after which no child may use it."""
    answers = context.Queue()
    child = context.Process(target=lambda: answers.put(torch._C._cuda_isInBadFork()))
    child.start()
    poisoned = answers.get(timeout=30)
    child.join()
    return not poisoned


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline-seconds", type=float, default=240)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only-heuristics", action="store_true", help="only ask cuDNN, run nothing (use a seed above 1)"
    )
    parser.add_argument("--skip-device", action="store_true", help="leave out the memory outside the allocator")
    arguments = parser.parse_args()
    started = time.time()
    arguments.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    if not _can_fork(context):
        print("CUDA was touched before forking: no worker could run", flush=True)
        return 1
    if not (arguments.skip_device or arguments.only_heuristics):
        try:
            measure_device(arguments.out, context, started + arguments.deadline_seconds * 0.3)
        except OSError as failure:
            print(f"no device figures: {failure}", flush=True)
        print(f"device part took {time.time() - started:.0f} s", flush=True)
    if not _can_fork(context):
        print("the device part touched CUDA in the parent", flush=True)
        return 1
    remaining = started + arguments.deadline_seconds - 8 - time.time()
    parts = (
        (HEURISTICS_SHARE, _ask, {"heuristics": heuristics.HEADER}),
        (1.0, _work, {"convolutions": convolutions.HEADER, "operators": operators.HEADER}),
    )
    if arguments.only_heuristics:
        parts = ((1.0, _ask, {"heuristics": heuristics.HEADER}),)
    for share, work, headers in parts:
        sweep(arguments.out, context, arguments.seed, arguments.jobs, time.time() + remaining * share, work, headers)
        remaining = started + arguments.deadline_seconds - 8 - time.time()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
