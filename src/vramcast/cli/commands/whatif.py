"""Say what a job would take with other settings: memory, step time, throughput and epochs, the fastest first.

JOB is what `vramcast predict` takes. Larger batches, checkpointing, half precision, other optimizers and more loading
workers are tried alone, and the ones that help together; every line has been traced and replayed on the virtual card.
"""

from __future__ import annotations

import argparse
import sys

from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import (
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    REPORT,
    add_calibration_option,
    add_compile_option,
    add_force_option,
    add_html_option,
    add_json_option,
    check_output,
    forks_possible,
    names,
    print_json,
    write_html,
)
from vramcast.features.advise.knob_names import SPEED

RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    parser.add_argument("--gpu", metavar="NAME", help='the card: "rtx-4090", "A100 80GB", or a size, "24GiB"')
    parser.add_argument("--memory", metavar="SIZE", help="let PyTorch reserve at most this (24GiB)")
    parser.add_argument("--keep", metavar="A,B", type=names, default=(), help=f"leave these alone: {', '.join(SPEED)}")
    add_calibration_option(parser)
    add_compile_option(parser)
    add_json_option(parser)
    add_html_option(parser)
    add_force_option(parser)
    add_job_options(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.cli.progress import reporting
    from vramcast.features.what_if.what_if import what_if

    check_output(args.html, REPORT, force=args.force)
    loaded = load(args)
    with reporting() as progress:
        result = what_if(
            loaded, args.gpu, args.memory, keep=args.keep, also=args.also, workers=forks_possible(args),
            progress=progress,
        )  # fmt: skip
    if args.html is not None:
        from vramcast.report.html_report import what_if_report

        write_html(args.html, lambda: what_if_report(result))
    if args.json:
        from vramcast.report.outcomes import what_if_document

        print_json(what_if_document(result))
    else:
        from vramcast.report.console import emit
        from vramcast.report.outcomes import what_if_page
        from vramcast.report.page import print_page

        emit(lambda console: print_page(what_if_page(result), console), sys.stdout)
    fits = result.asked.prediction.fits or any(outcome.prediction.fits for outcome in result.outcomes)
    return EXIT_FITS if fits else EXIT_DOES_NOT_FIT
