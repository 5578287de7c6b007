"""Set saved predictions and measurements side by side, line by line.

Takes traces (`run --save`), predictions (`run --json > FILE`) and measurements (`measure --save`). Differences
are from the first measurement or, if there is none, from the first file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vramcast.cli.options import EXIT_FITS, add_json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="two or more saved results")


def execute(args: argparse.Namespace) -> int:
    from vramcast.memory.compare import compare
    from vramcast.memory.results import load_result

    stems = [path.stem for path in args.files]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in args.files]
    results = [load_result(path, name) for path, name in zip(args.files, names, strict=True)]
    comparison = compare(results)
    if args.json:
        from vramcast.report.documents import comparison_document

        print_json(comparison_document(comparison))
    else:
        from vramcast.report.comparison import print_comparison
        from vramcast.report.console import emit

        emit(lambda console: print_comparison(comparison, console), sys.stdout)
    return EXIT_FITS
