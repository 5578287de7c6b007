"""Predict every measured workload again and say how far off it is: docs/lab/accuracy.md, and a summary of it in
docs/accuracy.md, README.md and the terminal. The margin that is kept free comes from the same errors
(lab/comparing/memory_errors.py).

    python -m lab.pages.accuracy            # everything (`make accuracy`)
    python -m lab.pages.accuracy --only unet --dry-run

Published measurements of other cards are evaluated too where they lie beside the repository (lab/external).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.comparing import memory_errors
from lab.comparing.errors import signed_percent
from lab.comparing.job_accuracy import compare_jobs, reasons, workloads_with_jobs
from lab.comparing.job_accuracy import line as job_line
from lab.comparing.predictions import Comparison, Recording, compare_each, missing_by_name, recordings
from lab.comparing.time_accuracy import SUMMARIES, print_summary, time_comparisons, with_others
from lab.external import rows as external_rows
from lab.pages import job_page, page, time_page

PAGE = ROOT / "docs" / "lab" / "accuracy.md"
EXTERNAL_LIBRARIES = ROOT / "build" / "external-libraries"
"""Where `make accuracy` puts the versions of timm and transformers that the published runs used."""
BEGIN, END = "<!-- accuracy summary -->", "<!-- end of accuracy summary -->"
MIB = 1 << 20


def predict_recording(recording: Recording, only: str, jobs: int) -> tuple[list[Comparison], dict[str, str]]:
    """(comparisons, why each workload that was left out was)."""
    missing = missing_by_name()
    chosen, left_out = [], {}
    for workload in recording.workloads:
        if only and not any(re.search(only, text) for text in (workload.name, *workload.tags)):
            continue
        needs = missing.get(workload.name, [])
        if needs:
            left_out[workload.name] = "needs " + ", ".join(needs)
        else:
            chosen.append(workload)
    comparisons = []
    for comparison in compare_each(chosen, jobs=jobs):
        comparisons.append(comparison)
        print(line(comparison), flush=True)
    return sorted(comparisons, key=lambda c: c.measured.name), left_out


def line(comparison: Comparison) -> str:
    measured = comparison.measured
    if comparison.error:
        return f"{measured.name:<34} not predicted: {comparison.error[:140]}"
    return (
        f"{measured.name:<34} reserved {measured.reserved_bytes / MIB:8.0f} MiB, predicted "
        f"{comparison.reserved_bytes / MIB:8.0f} ({signed_percent(comparison.reserved_error)}), allocated "
        f"{signed_percent(comparison.allocated_error)}  {comparison.seconds:.1f} s"
    )


def evaluate_external(jobs: int, predicted: Path | None) -> Any:
    """Scores of the published rows, or None where they are not here. In a process with the authors' libraries, unless
    they were `predicted` before."""
    from lab.external.score import load

    if predicted is not None:
        return load(predicted)
    folder = external_rows.folder()
    if folder is None:
        print("published measurements of other cards: not here, left out (lab/external)")
        return None
    environment = dict(os.environ)
    if EXTERNAL_LIBRARIES.is_dir():
        paths = [str(EXTERNAL_LIBRARIES), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rows.json"
        command = [sys.executable, "-m", "lab.external", "--out", str(out), "--jobs", str(jobs)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        return load(out)


def with_summary(text: str, summary: list[str]) -> str:
    """Put the summary between its markers; the closing one is added where it is missing."""
    before, marker, after = text.partition(BEGIN)
    if not marker:
        raise SystemExit(f"a page that should hold the summary has no {BEGIN}")
    if END in after:
        after = after.partition(END)[2]
    return before + BEGIN + "\n" + "\n".join(summary) + "\n" + END + after


def job_section(results: list[page.Result], jobs: int) -> list[str]:
    """The job files beside what was just predicted of their workloads' code."""
    code = {c.measured.name: c for result in results for c in result.comparisons}
    chosen = [workload for workload in workloads_with_jobs() if workload.name in code]
    comparisons = []
    for comparison in compare_jobs(chosen, jobs):
        comparisons.append(comparison)
        print("job file", job_line(comparison, code[comparison.measured.name]), flush=True)
    print("\n".join(["", *job_page.terminal_summary(comparisons)]))
    return job_page.section(comparisons, code, reasons())


def _kept_sections(text: str) -> list[str]:
    """The sections on times and job files as the page has them."""
    return text[text.index(time_page.BEGIN) : text.index(job_page.END) + len(job_page.END)].splitlines()


def _kept_times(short: str) -> list[str]:
    """The paragraph on times in a page that holds the summary."""
    found = re.search(r"(?ms)^The time of a step, .*?(?=\n\n|\n<!--)", short)
    return [] if found is None else found[0].splitlines()


def machine() -> dict[str, str]:
    """Where the predictions are made, for the page."""
    import torch

    build = "CUDA build" if torch.version.cuda else "CPU build"
    gpu = "with a GPU" if torch.cuda.is_available() else "no GPU"
    return {"python": platform.python_version(), "torch": f"{torch.__version__} ({build}, {gpu})"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression searched in names and tags; writes nothing")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    parser.add_argument(
        "--published", type=Path, help="what `python -m lab.external --out FILE` wrote: not predicted again"
    )
    parser.add_argument("--no-external", action="store_true", help="leave the published measurements out")
    parser.add_argument(
        "--memory-only",
        action="store_true",
        help="leave the sections on times and on job files as they are (lab.comparing.time_accuracy and .job_accuracy "
        "rewrite them)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print, write no file")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    recorded = recordings()
    if not recorded:
        print("no measurements in lab/data/measurements", file=sys.stderr)
        return 2
    results = []
    for recording in recorded:
        comparisons, left_out = predict_recording(recording, options.only, options.jobs)
        results.append(page.Result(recording, tuple(comparisons), left_out))
    if options.memory_only:
        sections = _kept_sections(PAGE.read_text(encoding="utf-8"))
        times_in_short = {short: _kept_times(short.read_text(encoding="utf-8")) for short in SUMMARIES}
    else:
        job_files = job_section(results, options.jobs)
        times = time_comparisons([c for result in results for c in result.comparisons])
        if not options.only:
            times = with_others(times, options.jobs)
        print_summary(times)
        sections = [*time_page.section(times), "", *job_files]
        times_in_short = {short: time_page.short_summary(times, links_to) for short, links_to in SUMMARIES.items()}
    without = options.no_external or options.only
    external = None if without else evaluate_external(options.jobs, options.published)
    print()
    print("\n".join(page.terminal_summary(results, external)))
    print(f"{time.monotonic() - started:.0f} s")
    if not (options.only or options.dry_run):
        PAGE.write_text("\n".join(page.document(results, external, machine(), sections)) + "\n", encoding="utf-8")
        for short, on_times in times_in_short.items():
            summary = [*page.short_summary(results, external), *on_times, ""]
            short.write_text(with_summary(short.read_text(encoding="utf-8"), summary), encoding="utf-8")
        memory_errors.update([c for result in results for c in result.comparisons], external, machine()["torch"])
        written = f"{PAGE.relative_to(ROOT)}, {memory_errors.ERRORS.relative_to(ROOT)}"
        print(f"wrote {written} and the summaries in {', '.join(short.name for short in SUMMARIES)}")
    unanswered = [c.measured.name for result in results for c in result.comparisons if c.error]
    return 1 if unanswered else 0


if __name__ == "__main__":
    sys.exit(main())
