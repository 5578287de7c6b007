"""Say what a training job takes on a card: parameters, activations, everything else, and which cards hold it.

JOB is a vramcast.yaml, a model folder (transformers or diffusers: config.json is enough), a training config that one
of the readers knows, or a Python function that returns a job (package.module:function). No GPU and no weights are
needed. What stands after `--` is read as the command line of a Hugging Face training script, or as its flags; it is
never run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import (
    CHROME_TRACE,
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    TRACE,
    add_calibration_option,
    add_card_options,
    add_chrome_option,
    add_force_option,
    add_json_option,
    check_output,
    print_json,
    step_count,
    use_calibration,
    write_chrome,
)

READS_SCRIPT_FLAGS = True
RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    add_card_options(parser)
    add_calibration_option(parser)
    add_job_options(parser)
    parser.add_argument(
        "--steps", type=step_count, default=3, metavar="N", help="trace N optimizer steps (%(default)s)"
    )
    add_json_option(parser)
    add_chrome_option(parser)
    parser.add_argument("--save", type=Path, metavar="TRACE", help="keep the trace, for `vramcast show` and `compare`")
    add_force_option(parser)


def execute(args: argparse.Namespace) -> int:
    check_output(args.save, TRACE, force=args.force)
    check_output(args.chrome, CHROME_TRACE, force=args.force)
    use_calibration(args)
    loaded = load(args)

    from vramcast.cli.progress import reporting
    from vramcast.prediction.predict import predict

    with reporting() as progress:
        result = predict(
            loaded,
            args.gpu,
            args.limit,
            args.steps,
            allocator_conf=args.allocator_conf,
            progress=progress,
        )
    if args.save is not None and result.trace is not None:
        result.trace.save(args.save)
    if args.chrome is not None:
        write_chrome(args.chrome, result.trace, result.gpu)
    if args.json:
        print_json(result.to_document())
    else:
        from vramcast.report.console import emit
        from vramcast.report.job import print_job

        emit(lambda console: print_job(result.job_account(), console), sys.stdout)
    return EXIT_FITS if result.fits else EXIT_DOES_NOT_FIT
