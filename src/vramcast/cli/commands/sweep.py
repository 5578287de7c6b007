"""Answer a grid of questions, models × cards × settings, on all cores or on a Ray cluster.

GRID is a YAML file with jobs, gpus and set. Answers are added to a CSV file as they come. Started again, it goes on
where it was: no question is asked twice.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from vramcast.base.language import sentence
from vramcast.cli.job_options import add_code_option
from vramcast.cli.options import (
    EXIT_FITS,
    REPORT,
    add_force_option,
    add_html_option,
    add_json_option,
    check_output,
    positive,
    print_json,
    write_html,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("grid", metavar="GRID", type=Path, help="a YAML file: jobs, gpus and set")
    parser.add_argument("--out", type=Path, metavar="FILE", help="a .csv or .parquet file (default: GRID's name, .csv)")
    parser.add_argument(
        "--workers", type=positive, metavar="N", help="processes that work at once (default: all cores)"
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="a Ray cluster instead: auto, or host:port")
    add_code_option(parser)
    add_json_option(parser)
    add_html_option(parser)
    add_force_option(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.cli.progress import reporting
    from vramcast.features.sweep.grid import read_grid
    from vramcast.features.sweep.sweep import sweep

    check_output(args.html, REPORT, force=args.force)
    grid = read_grid(args.grid)
    out = args.out or args.grid.with_suffix(".csv")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = args.workers or cores
    with reporting() as progress:
        progress(f"{len(grid):,} questions")
        done = sweep(grid, out, workers=workers, ray=args.ray, allow_code=args.allow_code, progress=progress)
    if args.html is not None:
        from vramcast.report.html_sweep import read_answers, sweep_report

        write_html(args.html, lambda: sweep_report(read_answers(done.lines), str(args.grid)))
    if args.json:
        print_json(
            {
                "questions": done.questions,
                "asked": done.asked,
                "verdicts": done.verdicts,
                "seconds": done.seconds,
                "out": str(done.path),
            }
        )
        return EXIT_FITS
    before = done.questions - done.asked
    known = f" ({before:,} were answered before)" if before else ""
    print(
        sentence(f"{done.asked:,} of {done.questions:,} questions answered in {done.seconds:.0f} s{known}: {done.path}")
    )
    for verdict, count in sorted(done.verdicts.items(), key=lambda item: -item[1]):
        print(f"  {count:>7,}  {sentence(verdict)}")
    return EXIT_FITS
