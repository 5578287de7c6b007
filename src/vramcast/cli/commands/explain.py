"""Show the arithmetic behind a module's numbers: each weight, each tensor it keeps, and their sums.

MODULE is a dotted name as `vramcast predict` shows it, with or without the component, or a pattern in which * stands
for anything between two dots (model.layers.*): all modules that match are added up.
"""

from __future__ import annotations

import argparse
import sys

from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import EXIT_FITS, add_json_option, positive, print_json

RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    parser.add_argument("module", metavar="MODULE", help="e.g. model.transformer.h.0, or model.layers.*")
    parser.add_argument("--gpu", metavar="NAME", help='the card: "rtx-4090", "A100 80GB", or a size, "24GiB"')
    parser.add_argument(
        "--depth", type=positive, metavar="N", help="levels of names below the module to list (default: all)"
    )
    add_json_option(parser)
    add_job_options(parser)


def execute(args: argparse.Namespace) -> int:
    loaded = load(args)

    from vramcast.cli.progress import reporting
    from vramcast.features.explain.explain import explain

    with reporting() as progress:
        result = explain(loaded, args.module, args.gpu, depth=args.depth, progress=progress)
    if args.json:
        print_json(result.to_document())
        return EXIT_FITS

    from vramcast.report.console import emit
    from vramcast.report.explain import explanation_page
    from vramcast.report.page import print_page

    page = explanation_page(result.explanation, result.prediction.job.name)
    emit(lambda console: print_page(page, console), sys.stdout)
    return EXIT_FITS
