"""Say how to get to a job safely: what to check first, a small run, then each run up to it, all of them predicted.

JOB and the card are what `vramcast check` takes; a training command may stand after `--`. Every run has been traced and
replayed on the virtual card, and comes with what to change in your own config. The ramp ends at the first run that does
not fit, with what `vramcast advise` proposes. Exit code 1: the job as it is does not fit.
"""

from __future__ import annotations

import argparse
import sys

from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import (
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    REPORT,
    add_force_option,
    add_host_option,
    add_html_option,
    add_json_option,
    add_room_options,
    check_output,
    print_json,
    write_html,
)

READS_SCRIPT_FLAGS = True
RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    add_room_options(parser)
    add_host_option(parser)
    add_json_option(parser)
    add_html_option(parser)
    add_force_option(parser)
    add_job_options(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.cli.progress import reporting
    from vramcast.features.plan.plan import plan

    check_output(args.html, REPORT, force=args.force)
    loaded = load(args)
    with reporting() as progress:
        result = plan(loaded, args.gpu, args.memory, args.device, progress=progress)
    if args.html is not None:
        from vramcast.report.html_report import plan_report

        write_html(args.html, lambda: plan_report(result.ramp))
    if args.json:
        print_json(result.to_document())
    else:
        from vramcast.report.console import emit
        from vramcast.report.page import print_page
        from vramcast.report.plan import plan_page

        emit(lambda console: print_page(plan_page(result.ramp), console), sys.stdout)
    return EXIT_FITS if result.reached else EXIT_DOES_NOT_FIT
