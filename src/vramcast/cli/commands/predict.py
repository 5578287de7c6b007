"""Say what a training job takes on a card: parameters, activations, everything else, and which cards hold it.

JOB is a vramcast.yaml, a model folder (transformers or diffusers: config.json is enough), a training config that one
of the readers knows, or a Python function that returns a job (package.module:function). No GPU and no weights are
needed. What stands after `--` is read as the command line of a Hugging Face training script, or as its flags; it is
never run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.cli.cards_options import add_several_gpus_options
from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import (
    CHROME_TRACE,
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    REPORT,
    TRACE,
    add_calibration_option,
    add_card_options,
    add_chrome_option,
    add_export_option,
    add_force_option,
    add_full_option,
    add_html_option,
    add_json_option,
    check_export,
    check_output,
    forks_possible,
    print_json,
    print_lines,
    print_result,
    step_count,
    write_chrome,
    write_export,
    write_html,
)

if TYPE_CHECKING:
    from vramcast.features.advise.result import Suggestion
    from vramcast.prediction.ranks import RankFigures

READS_SCRIPT_FLAGS = True
RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    add_card_options(parser)
    add_calibration_option(parser)
    add_job_options(parser)
    add_several_gpus_options(parser)
    parser.add_argument(
        "--steps", type=step_count, default=3, metavar="N", help="trace N optimizer steps (%(default)s)"
    )
    add_json_option(parser)
    add_full_option(parser)
    add_html_option(parser)
    add_export_option(parser)
    add_chrome_option(parser)
    parser.add_argument("--save", type=Path, metavar="TRACE", help="keep the trace, for `vramcast show` and `compare`")
    add_force_option(parser)


def execute(args: argparse.Namespace) -> int:
    check_output(args.save, TRACE, force=args.force)
    check_output(args.chrome, CHROME_TRACE, force=args.force)
    check_output(args.html, REPORT, force=args.force)
    check_export(args.export, force=args.force)
    loaded = load(args)

    from vramcast.cli.progress import reporting
    from vramcast.features.advise.first_changes import predict_and_change
    from vramcast.prediction.predict import predict
    from vramcast.prediction.ranks import predict_distinct_ranks

    divided = loaded.job.gpus.divides_model
    shows_changes = args.html is not None or (not args.json and not args.full)
    changes: Sequence[Suggestion] = ()
    ranks: tuple[RankFigures, ...] = ()
    with reporting() as progress:
        if divided:
            result, ranks = predict_distinct_ranks(
                loaded, args.gpu, args.limit, args.steps, allocator_conf=args.allocator_conf,
                workers=forks_possible(args), progress=progress,
            )  # fmt: skip
        elif shows_changes:
            result, changes = predict_and_change(
                loaded, args.gpu, args.limit, args.steps, args.allocator_conf, forks_possible(args), progress
            )
        else:
            result = predict(
                loaded, args.gpu, args.limit, args.steps, allocator_conf=args.allocator_conf, progress=progress
            )
    if args.save is not None and result.trace is not None:
        result.trace.save(args.save)
    if args.chrome is not None:
        write_chrome(args.chrome, result.trace, result.gpu)
    from vramcast.report.html_report import job_report
    from vramcast.report.screens import job_screen

    write_export(args.export, result.prediction)
    of_ranks = [rank.to_document() for rank in ranks]
    write_html(args.html, lambda: job_report(result.job_account(), changes, of_ranks))
    if args.json:
        print_json({**result.to_document(), **({"ranks": of_ranks} if ranks else {})})
    elif args.full:
        from vramcast.report.job import print_job

        print_result(result, lambda console: print_job(result.job_account(), console))
    else:
        print_lines(lambda width: job_screen(result.job_account(), changes, width))
    return EXIT_FITS if result.fits else EXIT_DOES_NOT_FIT
