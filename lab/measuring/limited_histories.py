"""Record what PyTorch's allocator does in runs under a memory limit, on a GPU.

    python -m lab.measuring.limited_histories --out FOLDER --runs NAME:GB:BATCH:STEPS,...

Each run is a workload of the corpus in a process of its own; its history, with the address of every segment, goes to
FOLDER/NAME-GB-BATCH.json.gz (vramcast.allocator.history reads it).
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.measuring.children import run_each
from lab.measuring.measure_corpus import Workload, load_corpus, preload

GB = 10**9
MOST_EVENTS = 2_000_000


@dataclass(frozen=True)
class Run:
    name: str
    limit_gb: int
    batch: int
    steps: int

    @classmethod
    def parse(cls, text: str) -> Run:
        name, limit_gb, batch, steps = text.split(":")
        return cls(name, int(limit_gb), int(batch), int(steps))

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.limit_gb}-{self.batch}.json.gz"


def record(run: Run, workload: Workload, path: Path) -> str:
    """Runs in a process of its own; a line for the report."""
    import torch

    from vramcast.allocator.history import HistoryHeader, from_trace, save_history
    from vramcast.allocator.replay import COMPARED_STATS
    from vramcast.base.factories import load_factory

    total_bytes = torch.cuda.mem_get_info()[1]
    fraction = run.limit_gb * GB / total_bytes
    torch.cuda.set_per_process_memory_fraction(fraction)
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=MOST_EVENTS)
    torch.manual_seed(0)
    made = 0
    try:
        step = load_factory(workload.factory)(**{**workload.args, "batch": run.batch})
        while made < run.steps:
            step()
            made += 1
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        pass
    stats = torch.cuda.memory_stats()
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    header = HistoryHeader(
        torch=torch.__version__,
        card=torch.cuda.get_device_name(),
        workload=f"{run.name}, batch {run.batch}, {made} steps",
        total_bytes=total_bytes,
        allowed_bytes=int(fraction * total_bytes),
        final_stats={key: stats[key] for key in COMPARED_STATS if key in stats},
    )
    save_history(from_trace(entries, header), path)
    return f"{made} steps, {len(entries):,} events, {stats['num_alloc_retries']} retries"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", required=True, help="NAME:GB:BATCH:STEPS, with commas")
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    corpus = {workload.name: workload for workload in load_corpus()}
    runs = [run for run in map(Run.parse, options.runs.split(",")) if not corpus[run.name].missing]
    preload([corpus[run.name] for run in runs])
    options.out.mkdir(parents=True, exist_ok=True)

    def work(run: Run) -> str:
        return record(run, corpus[run.name], options.out / run.file_name)

    for run, outcome in run_each(
        work, runs, jobs=options.jobs, timeout_seconds=120, weight=lambda run: run.limit_gb, budget=120
    ):
        print(f"{run.file_name}: {outcome.error or outcome.value} ({outcome.seconds:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
