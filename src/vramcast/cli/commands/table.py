"""Make a table of cards × batch × resolution or sequence: the largest batch that each card holds, or what each takes.

Two small batches are traced for each size, all others are worked out from them, and the answer is traced for real.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TypeVar

from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import EXIT_FITS, add_host_option, add_json_option, positive, print_json

T = TypeVar("T")

_LARGEST = "largest"
_MOST = 32
"""The most entries of one list: a table is for reading."""


RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    parser.add_argument(
        "--gpus",
        "--gpu",
        metavar="A,B",
        type=_list_of(str.strip),
        help="cards, by any of their names, or sizes (24GiB)",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--resolutions", metavar="A,B", type=_list_of(str.strip), help="256, or 480x832 (height x width)"
    )
    sizes.add_argument(
        "--sequence",
        "--sequences",
        "--seq",
        metavar="A,B",
        type=_list_of(positive),
        dest="sequences",
        help="lengths: 512,1024",
    )
    parser.add_argument(
        "--batch",
        metavar="A,B|largest",
        type=_batches,
        default=(),
        dest="batches",
        help="1,2,4, or largest (the default)",
    )
    for side in ("height", "width"):
        parser.add_argument(
            f"--{side}", metavar="A,B", type=_list_of(positive), dest=f"{side}s", help="in pixels: 256,512"
        )
    parser.add_argument(
        "--margin", type=float, metavar="SHARE",
        help="share of what the largest batch takes that stays free (default: the margin of such predictions)",
    )  # fmt: skip
    add_host_option(parser)
    add_json_option(parser)
    add_job_options(parser, without=("batch", "seq", "height", "width"))


def execute(args: argparse.Namespace) -> int:
    loaded = load(args)

    from vramcast.cli.progress import reporting
    from vramcast.features.table.table import DEFAULT_CARDS, table

    with reporting() as progress:
        result = table(
            loaded,
            args.gpus or DEFAULT_CARDS,
            args.batches,
            resolutions=args.resolutions or (),
            heights=args.heights or (),
            widths=args.widths or (),
            sequences=args.sequences or (),
            margin=args.margin,
            progress=progress,
        )
    if args.json:
        print_json(result.to_document())
        return EXIT_FITS

    from vramcast.report.batch_table import table_page
    from vramcast.report.console import emit
    from vramcast.report.page import print_page

    emit(lambda console: print_page(table_page(result.table), console), sys.stdout)
    return EXIT_FITS


def _list_of(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def parse(text: str) -> tuple[T, ...]:
        words = [word for word in text.split(",") if word.strip()]
        if not words or len(words) > _MOST:
            raise argparse.ArgumentTypeError(f"from 1 to {_MOST} values with commas between are needed, not {text!r}")
        return tuple(dict.fromkeys(kind(word.strip()) for word in words))

    return parse


def _batches(text: str) -> tuple[int, ...]:
    return () if text.strip() == _LARGEST else _list_of(positive)(text)
