"""Corpus workloads written as job files (lab/data/jobs), predicted as `vramcast predict` does and compared.

    python -m lab.comparing.job_accuracy                     # all, and rewrite the section of docs/lab/accuracy.md
    python -m lab.comparing.job_accuracy --only unet         # some; writes nothing
    python -m lab.comparing.job_accuracy --only unet --code  # and what the workload's own code is predicted to take

A job file has the name of the workload that it stands for.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from lab import DATA, ROOT
from lab.comparing.errors import signed_percent
from lab.comparing.predictions import STEPS, Comparison, Figures, Measured, compare_each, missing_by_name, recordings
from lab.measuring.import_measurements import FOLDER
from lab.pages import job_page
from lab.pages.markdown import rewritten

JOBS = DATA / "jobs"
REASONS = DATA / "job_differences.yaml"
PAGE = ROOT / "docs" / "lab" / "accuracy.md"


def reasons() -> dict[str, str]:
    """Why the prediction of a job file is not that of the workload's own code, by name."""
    return dict(yaml.safe_load(REASONS.read_text(encoding="utf-8"))["differences"])


def job_files(folder: Path = JOBS) -> dict[str, Path]:
    """Job files by the workload's name."""
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def workloads_with_jobs(folder: Path = FOLDER) -> list[Measured]:
    """The measured workloads for which there is a job file."""
    files = job_files()
    return [workload for recording in recordings(folder) for workload in recording.workloads if workload.name in files]


def job_figures(workload: Measured) -> Figures:
    """Figures of a workload's job file; runs in this process."""
    import vramcast

    file = job_files()[workload.name]
    prediction = vramcast.predict(
        file, workload.gpu, steps=STEPS, allocator_conf=workload.allocator_conf, allow_code=True
    )
    return prediction.peak_allocated_bytes, prediction.peak_reserved_bytes, prediction.device_bytes, None


def compare_jobs(workloads: list[Measured], jobs: int = 2) -> Iterator[Comparison]:
    """Yields as they finish."""
    return compare_each(workloads, jobs=jobs, work=job_figures)


def line(comparison: Comparison, code: Comparison | None = None) -> str:
    name = comparison.measured.name
    if comparison.error:
        return f"{name:<30} not predicted: {comparison.error[:300]}"
    text = (
        f"{name:<30} reserved {signed_percent(comparison.reserved_error):>8}, allocated "
        f"{signed_percent(comparison.allocated_error):>8}  {comparison.seconds:5.1f} s"
    )
    if code is None:
        return text
    if code.error:
        return f"{text}  its code was not predicted: {code.error[:100]}"
    reserved, allocated = job_page.difference(comparison, code)
    same = "as its code" if not (reserved or allocated) else f"{reserved:+,d} reserved, {allocated:+,d} allocated"
    return f"{text}  {same}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression searched in names and tags; writes nothing")
    parser.add_argument("--code", action="store_true", help="predict the workload's own code too")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    missing = missing_by_name()
    chosen = [
        workload
        for workload in workloads_with_jobs()
        if not missing.get(workload.name) and any(re.search(options.only, t) for t in (workload.name, *workload.tags))
    ]
    write = not options.only
    beside_code = options.code or write
    code = {c.measured.name: c for c in compare_each(chosen, jobs=options.jobs)} if beside_code else {}
    comparisons = []
    for comparison in compare_jobs(chosen, options.jobs):
        comparisons.append(comparison)
        print(line(comparison, code.get(comparison.measured.name)), flush=True)
    print("\n".join(["", *job_page.terminal_summary(comparisons), f"{time.monotonic() - started:.0f} s"]))
    if write:
        section = job_page.section(comparisons, code, reasons())
        page = rewritten(PAGE.read_text(encoding="utf-8"), section, job_page.BEGIN, job_page.END)
        PAGE.write_text(page, encoding="utf-8")
        print(f"wrote {PAGE.name}")
    return 1 if any(comparison.error for comparison in comparisons) else 0


if __name__ == "__main__":
    sys.exit(main())
