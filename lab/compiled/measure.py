"""Run one workload on a real card and write down what it took, allocation by allocation, or how long its steps are.

python measure.py NAME RESULT_FOLDER            memory
python measure.py NAME RESULT_FOLDER TURNS      times: the process waits until no other uses the card (measure_all)
"""

from __future__ import annotations

import fcntl
import gzip
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAME, RESULT = sys.argv[1], Path(sys.argv[2])
TURNS = Path(sys.argv[3]) if len(sys.argv) > 3 else None
SCRATCH = Path(tempfile.gettempdir())
CACHE = Path(os.environ.get("COMPILE_CACHES", SCRATCH / "compile-caches")) / NAME
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(CACHE)
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "triton"))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "3")

import torch  # noqa: E402
import workloads  # noqa: E402
from loop import RECORD, STEPS, WORKLOADS  # noqa: E402

PACKAGES = ("torch", "triton", "transformers", "torchvision", "liger-kernel", "fla-core", "flash-linear-attention",
            "torchao")  # fmt: skip
OneStep = Callable[[int], None]


def trace() -> list[dict[str, Any]]:
    return torch.cuda.memory._snapshot()["device_traces"][0]


class Choices:
    """What benchmarks decide: kernels with several configurations, and padded matrix products."""

    def __init__(self) -> None:
        self.benchmarked: list[list[Any]] = []
        self.padded: list[Any] = []

    def watch(self) -> None:
        from torch._inductor.fx_passes import pad_mm
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        original = CachingAutotuner.benchmark_all_configs
        should_pad = pad_mm.should_pad

        def benchmark_all_configs(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(trace())
            result = original(tuner, *args, **kwargs)
            name = tuner.inductor_meta.get("kernel_name")
            self.benchmarked.append([name, len(tuner.launchers), before, len(trace())])
            return result

        def pads(match: Any, mat1: Any, mat2: Any, op: Any, *rest: Any, **kwargs: Any) -> Any:
            before = len(trace())
            result = should_pad(match, mat1, mat2, op, *rest, **kwargs)
            self.padded.append([str(op), [str(s) for s in mat1.shape], [str(s) for s in mat2.shape], str(mat1.dtype),
                                bool(result), before, len(trace())])  # fmt: skip
            return result

        CachingAutotuner.benchmark_all_configs = benchmark_all_configs
        pad_mm.should_pad = pads


def pools() -> list[list[Any]]:
    """Segments of the allocator by pool and stream: how many, bytes, and bytes in use."""
    table: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for segment in torch.cuda.memory.memory_snapshot(include_traces=False):
        row = table[(*segment.get("segment_pool_id", (0, 0)), segment["stream"])]
        row[0] += 1
        row[1] += segment["total_size"]
        row[2] += segment["allocated_size"]
    return [[*key, *row] for key, row in sorted(table.items())]


# -- times ------------------------------------------------------------------------------------------------------------


@contextmanager
def alone(turns: Path, phase: str) -> Iterator[None]:
    """Wait until the phase has begun, then until no other process uses the card."""
    while not (turns / phase).exists():
        time.sleep(0.05)
    with (turns / "card").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


ROUNDS = 5
"""Compiled and eager code take turns this often: the host's speed changes from second to second."""


def seconds_of(step: OneStep, steps: int) -> dict[str, list[float]]:
    """Steps one after the other without waiting for the card in between, and each by itself."""
    step(0)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(steps):
        step(number)
    torch.cuda.synchronize()
    in_a_row = (time.perf_counter() - begin) / steps
    each, host = [], []
    for number in range(steps):
        begin = time.perf_counter()
        step(number)
        host.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        each.append(time.perf_counter() - begin)
    return {"in_a_row": [in_a_row], "each": each, "host": host}


def in_turns(step: OneStep, steps: int) -> dict[str, dict[str, list[float]]]:
    """Times of compiled code and of the same code run eagerly."""
    kinds = {"compiled": "default"}
    if torch._dynamo.utils.counters["stats"]:
        kinds["eager"] = "force_eager"
    found: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in kinds}
    for _ in range(ROUNDS):
        for kind, stance in kinds.items():
            torch.compiler.set_stance(stance)
            for what, seconds in seconds_of(step, steps).items():
                found[kind][what] += seconds
    torch.compiler.set_stance("default")
    return found


def kernels_of(step: OneStep, number: int) -> list[list[Any]]:
    """Kernels and copies of one step in the order in which they ran: name, microseconds, start."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step(number)
        torch.cuda.synchronize()
    events = [e for e in profiler.profiler.kineto_results.events() if "cuda" in str(e.device_type()).lower()]
    begin = min((e.start_ns() for e in events), default=0)
    rows = [[e.name()[:160], e.duration_ns() / 1e3, (e.start_ns() - begin) / 1e3] for e in events]
    return sorted(rows, key=lambda row: row[2])


def time_it(step: OneStep, turns: Path, record: dict[str, Any]) -> None:
    """Called after a few steps, when everything is compiled."""
    steps = len(RECORD.steps) or STEPS
    (turns / f"{NAME}.ready").touch()
    with alone(turns, "time"):
        record |= in_turns(step, steps)
    save(record)
    (turns / f"{NAME}.timed").touch()
    with alone(turns, "profile"):
        for kind, stance in (("kernels", "default"), ("eager-kernels", "force_eager")):
            torch.compiler.set_stance(stance)
            step(steps - 1)
            with gzip.open(RESULT / f"{NAME}.{kind}.gz", "wt") as stream:
                json.dump(kernels_of(step, steps - 1), stream)


# -- what is written --------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def save(record: dict[str, Any]) -> None:
    (RESULT / f"{NAME}.{'json' if TURNS is None else 'times.json'}").write_text(json.dumps(record))


def save_events() -> None:
    events = [[e["action"], e["addr"], e["size"], e["stream"]] for e in trace()]
    with gzip.open(RESULT / f"{NAME}.events.gz", "wt") as stream:
        json.dump(events, stream)
    folder = SCRATCH / f"wrappers-{NAME}" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    for file in CACHE.rglob("*.py"):
        if "def call(" in file.read_text(errors="replace"):
            shutil.copy(file, folder / file.name)
    subprocess.run(["tar", "czf", RESULT / f"{NAME}.wrappers.tgz", "-C", folder.parent, NAME], check=False)


def record_memory(record: dict[str, Any]) -> None:
    torch.cuda.init()
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=2_000_000)
    choices = Choices()
    choices.watch()
    marks: list[int] = []
    record |= {"marks": marks, "pools": [], "benchmarked": choices.benchmarked, "padded": choices.padded}

    def after_step() -> None:
        marks.append(len(trace()))
        record["pools"].append(pools())

    RECORD.after_step = after_step
    run(record)
    counters = torch._dynamo.utils.counters
    record["device_taken"] = free - torch.cuda.mem_get_info()[0]
    record["graph_breaks"] = {str(k): v for k, v in counters["graph_break"].items()}
    record["counters"] = {key: {str(k): v for k, v in counters[key].items()} for key in ("stats", "inductor", "frames")}
    save_events()


def compile_times() -> dict[str, float]:
    """Seconds of each phase of compiling, as torch's own clocks add them up."""
    from torch._dynamo.utils import compilation_time_metrics

    return {phase: round(sum(seconds), 3) for phase, seconds in compilation_time_metrics.items()}


def run(record: dict[str, Any]) -> None:
    begin = time.time()
    torch.manual_seed(0)
    try:
        WORKLOADS[NAME]()
    except Exception as raised:
        record["error"] = repr(raised)[:2000]
    record["seconds"] = round(time.time() - begin, 1)
    record["compile_times"] = compile_times()


def main() -> None:
    RESULT.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {
        "name": NAME, "steps": RECORD.steps, "error": None, "versions": versions(),
        "gpu": torch.cuda.get_device_name(), "properties": repr(torch.cuda.get_device_properties(0)),
    }  # fmt: skip
    if TURNS is None:
        record_memory(record)
    else:
        turns = TURNS
        RECORD.after_training = lambda step: time_it(step, turns, record)
        run(record)
    save(record)
    print(NAME, record["seconds"], "s", record["steps"][-1:], record["error"] or "", flush=True)


assert workloads is not None  # it fills WORKLOADS
main()
