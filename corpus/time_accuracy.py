"""Predict how long recorded steps take and say how far off that is: docs/accuracy.md, docs/timing.md, the terminal.

    python -m corpus.time_accuracy [--traces FOLDER] [--only REGEX] [--details]
    python -m corpus.time_accuracy --predict corpus/drawn-4.yaml --out FILE

The second form writes what is predicted of workloads that were not measured yet. `--traces` keeps the traces of the
workloads in a folder and takes those that are there already: useful while only the timing changes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from corpus.children import run_each
from corpus.markdown import rewritten
from corpus.measure_corpus import Workload, load_corpus, load_everything
from corpus.predictions import TIMEOUT_SECONDS, Comparison, Measured, import_heavy, run_virtually
from corpus.times import (
    PHASES,
    MeasuredTimes,
    TimeFigures,
    combined,
    measured_times,
    op_records,
    time_figures,
)
from vramcast.trace import StepTrace

GPU = "h200"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
ERRORS = Path(__file__).resolve().parents[1] / "src" / "vramcast" / "timing" / "errors.json"
LEAST_PHASE = 0.02
"""A phase that is a smaller part of its step than this is not judged."""
LEAST_DIFFERENCE = 0.05
_SAME_MODEL = ("name", "kind", "layers", "width", "heads", "channels", "gated", "dims", "rank")


@dataclass(frozen=True)
class TimeComparison:
    """A measured step beside its prediction."""

    measured: MeasuredTimes
    predicted: TimeFigures

    @property
    def error(self) -> float:
        return self.predicted.seconds / self.measured.seconds - 1

    @property
    def specification_error(self) -> float:
        return self.predicted.specification_seconds / self.measured.seconds - 1

    def phase_error(self, phase: str) -> float | None:
        measured = self.measured.phases.get(phase, 0.0)
        if measured < LEAST_PHASE * self.measured.seconds:
            return None
        return self.predicted.phases.get(phase, 0.0) / measured - 1

    @property
    def fitted(self) -> bool:
        """Its ops were recorded, and the times of kernels and host are fitted to them."""
        return self.measured.name in _fitted()

    @property
    def model(self) -> tuple[Any, ...]:
        args = self.measured.args
        return self.measured.factory, *(str(args.get(name)) for name in _SAME_MODEL)


@cache
def _fitted() -> frozenset[str]:
    return frozenset(record["name"] for record in op_records())


@dataclass(frozen=True)
class Pairs:
    """Pairs of runs of one model whose measured times differ."""

    right: int
    total: int
    wrong: tuple[tuple[str, str], ...]


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
    found = []
    for one in measured:
        path = folder / f"{one.name}.trace"
        figures = time_figures(StepTrace.load(path)) if path.exists() else None
        if figures is not None:
            found.append(TimeComparison(one, figures))
    return found


def time_comparisons(comparisons: Iterable[Comparison]) -> list[TimeComparison]:
    """The times in predictions of memory that were made anyway."""
    known = measured_times()
    return [
        TimeComparison(combined(known[c.measured.name]), c.time)
        for c in comparisons
        if c.time is not None and c.measured.name in known
    ]


def order_of_pairs(comparisons: Iterable[TimeComparison]) -> Pairs:
    """Runs of the same model whose measured times differ by more than 5 %: is the slower one predicted slower?"""
    by_model: dict[tuple[Any, ...], list[TimeComparison]] = {}
    for comparison in comparisons:
        by_model.setdefault(comparison.model, []).append(comparison)
    right, wrong = 0, []
    for group in by_model.values():
        for i, one in enumerate(group):
            for other in group[i + 1 :]:
                a, b = one.measured.seconds, other.measured.seconds
                if abs(a - b) <= LEAST_DIFFERENCE * min(a, b):
                    continue
                if (a < b) == (one.predicted.seconds < other.predicted.seconds):
                    right += 1
                else:
                    wrong.append((one.measured.name, other.measured.name))
    return Pairs(right, right + len(wrong), tuple(wrong))


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(comparisons: list[TimeComparison]) -> list[tuple[str, int, float, float, float]]:
    """(what, how many, median error, nine of ten, within 20 %)."""
    rows = []
    columns: list[tuple[str, list[float]]] = [("step", [c.error for c in comparisons])]
    for phase in PHASES:
        errors = [c.phase_error(phase) for c in comparisons]
        columns.append((phase, [e for e in errors if e is not None]))
    columns.append(("step, specification only", [c.specification_error for c in comparisons]))
    for name, found in columns:
        sizes = [abs(error) for error in found]
        within = sum(size <= 0.2 for size in sizes) / len(sizes) if sizes else 0.0
        rows.append((name, len(sizes), quantile(sizes, 0.5), quantile(sizes, 0.9), within))
    return rows


def spread(comparisons: list[TimeComparison]) -> dict[str, tuple[float, float]]:
    """Measured over predicted, between the 5th and the 95th of a hundred: what an interval is made of. With a
    calibration, of workloads that it was not fitted to."""
    unseen = [comparison for comparison in comparisons if not comparison.fitted] or comparisons
    found = {}
    for name, errors in (
        ("calibrated", [c.error for c in unseen]),
        ("specification", [c.specification_error for c in comparisons]),
    ):
        ratios = [1 / (1 + error) for error in errors]
        low, high = min(1.0, quantile(ratios, 0.05)), max(1.0, quantile(ratios, 0.95))
        found[name] = (round(low, 2), round(high, 2))
    return found


def as_measured(workload: Workload | MeasuredTimes) -> Measured:
    seed = workload.seed if isinstance(workload, MeasuredTimes) else 0
    return Measured(
        workload.name, workload.factory, dict(workload.args), tuple(workload.tags), seed, GPU, "", 0, 0, None
    )


def recorded(only: str = "") -> list[MeasuredTimes]:
    """One figure for each recorded workload that this machine can run."""
    missing = {workload.name for workload in load_everything() if workload.missing}
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
    unseen = [comparison for comparison in comparisons if not comparison.fitted]
    for title, group in (("all recorded workloads", comparisons), ("those whose ops no fit has seen", unseen)):
        print(f"{title}: {len(group)}")
        for name, count, middle, most, within in summary(group):
            print(f"  {name:<26} {count:4d}  median {middle:6.1%}  nine of ten {most:6.1%}  within 20 % {within:5.0%}")
    pairs = order_of_pairs(comparisons)
    if pairs.total:
        print(
            f"pairs of one model in the right order: {pairs.right} of {pairs.total} ({pairs.right / pairs.total:.1%})"
        )
        for one, other in pairs.wrong[:12]:
            print(f"  wrong: {one}, {other}")


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
    parser.add_argument("--write", action="store_true", help="rewrite docs/accuracy.md and the ranges that are shown")
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
        trace_all([as_measured(one) for one in known], folder, options.jobs)
        comparisons = compare(known, folder)
    if options.details:
        for comparison in sorted(comparisons, key=lambda c: c.error):
            print(line(comparison))
    print_summary(comparisons)
    found = spread(comparisons)
    print(f"measured over predicted: {found}")
    if options.write:
        from corpus import time_page

        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            rewritten(text, time_page.section(comparisons), time_page.BEGIN, time_page.END), encoding="utf-8"
        )
        ERRORS.write_text(json.dumps({"measured_over_predicted": found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
