"""Steps that were timed on a quiet computer beside what is predicted for an undisturbed host.

python -m lab.comparing.quiet_times [--traces FOLDER] quiet-1 quiet-2
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path

from lab import DATA
from lab.comparing.time_accuracy import as_measured, trace_all
from lab.comparing.time_errors import quantile
from lab.comparing.times import time_figures
from lab.measuring.measure_corpus import Workload, load_corpus
from lab.measuring.quiet import quiet_runs
from vramcast.trace import StepTrace

NEAR = 0.2


def workloads_of(name: str) -> list[Workload]:
    """The workloads of a recorded set that can be run here."""
    runs = quiet_runs(name)
    return [w for w in load_corpus(DATA / f"{name}.yaml") if w.name in runs and not w.missing]


def errors(name: str, workloads: Iterable[Workload], traces: Path, *, jobs: int = 1) -> dict[str, float]:
    """How far off each is: predicted over measured, less one."""
    runs, chosen = quiet_runs(name), list(workloads)
    failed = trace_all([as_measured(w) for w in chosen], traces, jobs)
    if failed:
        raise RuntimeError(f"not predicted: {failed}")
    found = {}
    for workload in chosen:
        figures = time_figures(StepTrace.load(traces / f"{workload.name}.trace"))
        predicted = None if figures is None else figures.at_host(1.0)
        assert predicted is not None, workload.name
        found[workload.name] = predicted.seconds / runs[workload.name]["quiet_seconds"] - 1
    return found


def told(found: dict[str, float]) -> str:
    """The median error, how many are near, and those that are not."""
    sizes = [abs(error) for error in found.values()]
    near = sum(size <= NEAR for size in sizes)
    far = sorted(((error, name) for name, error in found.items() if abs(error) > NEAR), key=lambda row: -abs(row[0]))
    lines = [f"{len(sizes)} steps, {quantile(sizes, 0.5):.1%} off at the median, {near / len(sizes):.0%} within 20 %"]
    return "\n".join([*lines, *(f"  {error:+7.1%}  {name}" for error, name in far)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("--traces", type=Path, help="keep traces here and take those that are here already")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.traces or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.sets:
            print(f"{name}: {told(errors(name, workloads_of(name), folder, jobs=args.jobs))}", flush=True)


if __name__ == "__main__":
    main()
