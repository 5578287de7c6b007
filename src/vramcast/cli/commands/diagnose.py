"""Say from a training log where the time goes, what the log left out, what would help, and what will not.

LOG is a training log, stage timings, trainer_state.json, metrics.csv or a torch.profiler trace, of any size; several
files of the same run may be given, and - is standard input. PyTorch is loaded only for --job.
"""

from __future__ import annotations

import argparse
import sys

from vramcast.cli.job_options import add_code_option, load_alone
from vramcast.cli.options import (
    EXIT_FITS,
    REPORT,
    add_calibration_option,
    add_force_option,
    add_html_option,
    add_json_option,
    add_write_through_option,
    check_output,
    positive,
    print_json,
    write_html,
)

RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", nargs="+", help="a file, of any usual format; - is standard input")
    parser.add_argument("--job", metavar="JOB", help="what was trained, as `vramcast predict` takes it")
    parser.add_argument("--gpu", metavar="NAME", help="the card it was trained on, for --job")
    add_code_option(parser)
    add_calibration_option(parser)
    parser.add_argument(
        "--no-changes",
        action="store_true",
        help="with --job: do not trace what changes would give; much quicker",
    )
    steps = parser.add_argument_group("how samples make a step, where neither the log nor the job says it")
    steps.add_argument("--batch", type=positive, metavar="N", help="samples at a time on one GPU")
    steps.add_argument("--gpus", "--world-size", type=positive, metavar="N", help="how many train together")
    steps.add_argument("--accumulation", type=positive, metavar="N", help="batches in a step")
    steps.add_argument("--seq", type=positive, metavar="N", help="tokens of a sample, for tokens/s")
    steps.add_argument(
        "--throughput",
        choices=("all", "one"),
        help="whose samples/s the log gives: of all GPUs (the default) or of one",
    )
    add_json_option(parser)
    add_html_option(parser)
    add_force_option(parser)
    add_write_through_option(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.cli.progress import reporting
    from vramcast.features.diagnose.diagnose import diagnose

    check_output(args.html, REPORT, force=args.force)
    loaded = load_alone(args)
    with reporting() as progress:
        result = diagnose(
            args.log, loaded, args.gpu, batch=args.batch, gpus=args.gpus, accumulation=args.accumulation,
            sequence=args.seq, throughput=args.throughput, changes=not args.no_changes, progress=progress,
        )  # fmt: skip
    if args.html is not None:
        from vramcast.report.diagnosis import diagnosis_page
        from vramcast.report.html_report import page_report

        write_html(args.html, lambda: page_report("Diagnosis of a log", diagnosis_page(result.diagnosis)))
    if args.json:
        print_json(result.to_document())
    else:
        from vramcast.report.console import emit
        from vramcast.report.diagnosis import diagnosis_page
        from vramcast.report.page import print_page

        emit(lambda console: print_page(diagnosis_page(result.diagnosis), console), sys.stdout)
    return EXIT_FITS
