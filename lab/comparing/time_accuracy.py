"""Predict how long recorded steps take and say how far off that is: docs/lab/accuracy.md and its summaries.

    python -m lab.comparing.time_accuracy [--traces FOLDER] [--only REGEX] [--details]
    python -m lab.comparing.time_accuracy --predict lab/data/drawn-4.yaml --out FILE

The second form writes what is predicted of workloads that were not measured yet, for hosts of several speeds too.
`--traces` keeps the traces of the workloads in a folder and takes those that are there already: useful while only the
timing changes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab import DATA, ROOT
from lab.comparing.predictions import TIMEOUT_SECONDS, Comparison, Measured, import_heavy, run_virtually
from lab.comparing.time_errors import TimeComparison, groups, pairs_of_variants, spread, summary
from lab.comparing.times import PHASES, MeasuredTimes, combined, measured_times, time_figures
from lab.measuring.children import run_each
from lab.measuring.measure_corpus import Workload, load_corpus, load_everything
from lab.pages.markdown import rewritten
from vramcast.trace import StepTrace

GPU = "h200"
PAGE = ROOT / "docs" / "lab" / "accuracy.md"
ERRORS = ROOT / "src" / "vramcast" / "timing" / "errors.json"
SUMMARIES = {PAGE.parents[2] / "README.md": "docs/", PAGE.parents[1] / "accuracy.md": ""}
"""Pages that hold a summary, each with where the user's pages lie as seen from it."""
VARIANTS = DATA / "what-if.yaml"


def trace_all(workloads: Iterable[Measured], folder: Path, jobs: int) -> dict[str, str]:
    """Leave a trace of each in `folder`; why not, where one cannot be made."""
    missing = [w for w in workloads if not (folder / f"{w.name}.trace").exists()]

    def work(workload: Measured) -> None:
        trace = run_virtually(workload).trace
        assert trace is not None
        trace.save(folder / f"{workload.name}.trace")

    import_heavy(missing)
    failed = {}
    for workload, outcome in run_each(work, missing, jobs=jobs, timeout_seconds=TIMEOUT_SECONDS):
        if outcome.error:
            failed[workload.name] = outcome.error
            print(f"{workload.name:<42} not predicted: {outcome.error[:120]}", flush=True)
    return failed


def compare(measured: Iterable[MeasuredTimes], folder: Path) -> list[TimeComparison]:
    comparisons = []
    for times in measured:
        path = folder / f"{times.name}.trace"
        figures = time_figures(StepTrace.load(path), times.steps) if path.exists() else None
        if figures is not None:
            comparisons.append(TimeComparison(times, figures))
    return comparisons


def time_comparisons(comparisons: Iterable[Comparison]) -> list[TimeComparison]:
    """The times in predictions of memory that were made anyway."""
    known = measured_times()
    return [
        TimeComparison(combined(known[c.measured.name]), c.time)
        for c in comparisons
        if c.time is not None and c.measured.name in known
    ]


def with_others(comparisons: list[TimeComparison], jobs: int) -> list[TimeComparison]:
    """And the recorded workloads that are not among them."""
    known = {comparison.measured.name for comparison in comparisons}
    others = [times for times in recorded() if times.name not in known]
    with tempfile.TemporaryDirectory() as scratch:
        trace_all([as_measured(times) for times in others], Path(scratch), jobs)
        return [*comparisons, *compare(others, Path(scratch))]


def as_measured(workload: Workload | MeasuredTimes) -> Measured:
    seed = workload.seed if isinstance(workload, MeasuredTimes) else 0
    return Measured(
        workload.name, workload.factory, dict(workload.args), tuple(workload.tags), seed, GPU, "", 0, 0, None
    )


def recorded(only: str = "") -> list[MeasuredTimes]:
    """One figure for each recorded workload that this machine can run."""
    missing = {workload.name for workload in (*load_everything(), *load_corpus(VARIANTS)) if workload.missing}
    return [
        combined(runs)
        for name, runs in sorted(measured_times().items())
        if name not in missing and (not only or re.search(only, name))
    ]


def predict_unmeasured(corpus: Path, out: Path, folder: Path, jobs: int) -> int:
    workloads = [as_measured(w) for w in load_corpus(corpus) if not w.missing]
    failed = trace_all(workloads, folder, jobs)
    lines: list[dict[str, Any]] = []
    for workload in workloads:
        if workload.name in failed:
            lines.append({"name": workload.name, "error": failed[workload.name]})
            continue
        figures = time_figures(StepTrace.load(folder / f"{workload.name}.trace"))
        if figures is not None:
            lines.append({"name": workload.name, **asdict(figures)})
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(lines) - len(failed)} of {len(workloads)} predicted, written to {out}")
    return 0


def print_summary(comparisons: list[TimeComparison]) -> None:
    for title, group in groups(comparisons):
        print(f"{title}: {len(group)}")
        for name, count, middle, most, within in summary(group):
            print(f"  {name:<39} {count:4d}  median {middle:6.1%}  nine of ten {most:6.1%}  within 20 % {within:5.0%}")
    for title, pairs in pairs_of_variants(comparisons):
        print(f"pairs in the right order ({title}): {pairs.right} of {pairs.total} ({pairs.share:.1%})")
        for first, second in pairs.wrong[:12]:
            print(f"  wrong: {first}, {second}")
    noisy = [comparison.measured.name for comparison in comparisons if comparison.measured.noisy]
    print(f"measured with and without waits between steps, and far apart: {', '.join(noisy) or 'none'}")


def line(comparison: TimeComparison) -> str:
    measured, predicted = comparison.measured, comparison.predicted
    phases = " ".join(
        f"{phase} {measured.phases[phase] * 1e3:.1f}/{predicted.phases.get(phase, 0) * 1e3:.1f}" for phase in PHASES
    )
    return (
        f"{measured.name:<42} {measured.seconds * 1e3:8.1f} ms, predicted {predicted.seconds * 1e3:8.1f} "
        f"({comparison.error:+.1%}) {phases} {predicted.limited_by}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder that keeps the traces")
    parser.add_argument("--only", default="", help="regular expression searched in names")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    parser.add_argument("--details", action="store_true", help="a line for each workload")
    parser.add_argument(
        "--write", action="store_true", help="rewrite docs/lab/accuracy.md and the ranges that are shown"
    )
    parser.add_argument("--predict", type=Path, metavar="CORPUS", help="workloads to predict without comparing")
    parser.add_argument("--out", type=Path, help="with --predict: where to write")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.traces or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if options.predict:
            if options.out is None:
                parser.error("--predict needs --out")
            return predict_unmeasured(options.predict, options.out, folder, options.jobs)
        known = recorded(options.only)
        trace_all([as_measured(times) for times in known], folder, options.jobs)
        comparisons = compare(known, folder)
    if options.details:
        for comparison in sorted(comparisons, key=lambda c: c.error):
            print(line(comparison))
    print_summary(comparisons)
    ratios = spread(comparisons)
    print(f"measured over predicted: {ratios}")
    if options.write:
        from lab.pages import time_page

        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            rewritten(text, time_page.section(comparisons), time_page.BEGIN, time_page.END), encoding="utf-8"
        )
        for page, links_to in SUMMARIES.items():
            lines = time_page.short_summary(comparisons, links_to)
            short = re.sub(
                r"(?ms)^The time of a step, .*?(?=\n\n|\n<!--)", "\n".join(lines), page.read_text(encoding="utf-8")
            )
            page.write_text(short, encoding="utf-8")
        ERRORS.write_text(json.dumps({"measured_over_predicted": ratios}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
