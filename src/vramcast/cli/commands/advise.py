"""Say what to change so that a job fits, with what each change costs, ready to paste.

JOB and the card are what `vramcast check` takes; a training command may stand after `--`. Everything that is printed
has been traced and replayed on the virtual card. The batch of an optimizer step (batch × GPUs × accumulation) stays
what it is. Exit code 1: nothing fits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.base.language import sentence
from vramcast.cli.cards_options import add_several_gpus_options
from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import (
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    REPORT,
    add_compile_option,
    add_force_option,
    add_full_option,
    add_host_option,
    add_html_option,
    add_json_option,
    add_room_options,
    check_output,
    forks_possible,
    names,
    print_json,
    print_result,
    write_html,
)
from vramcast.features.advise.knob_names import KNOBS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from vramcast.features.advise.layout_configs import HasChanges
    from vramcast.gpus import GpuSpec
    from vramcast.jobs.load import LoadedJob

    _Answer = tuple[dict[str, Any], list[str], Sequence[HasChanges]]
    """As JSON, as lines, and the ways that were found."""

READS_SCRIPT_FLAGS = True
RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    add_room_options(parser)
    parser.add_argument(
        "--keep", metavar="A,B", type=names, default=(),
        help=f"leave these alone: {', '.join(KNOBS)}",
    )  # fmt: skip
    parser.add_argument(
        "--objective", metavar="NAME", default="throughput",
        help="throughput (the default), memory (the least), or closest (the fewest changes)",
    )  # fmt: skip
    parser.add_argument(
        "--largest", action="store_true",
        help="also look for the longest sequence, the largest resolution and the longest clip that fit",
    )  # fmt: skip
    parser.add_argument(
        "--write", metavar="FILE", type=Path,
        help="the best as a new file like yours, with its suffix (several files: a new folder), or as a vramcast.yaml "
        "(another .yaml)",
    )  # fmt: skip
    several = parser.add_mutually_exclusive_group()
    several.add_argument(
        "--fewest-gpus", action="store_true",
        help="the fewest such cards that hold the job under FSDP; --write makes an accelerate config of the best",
    )  # fmt: skip
    several.add_argument(
        "--fastest", action="store_true",
        help="with --gpus N: the fastest way to divide the job over N cards; --write as above, or torchtitan (.toml)",
    )  # fmt: skip
    several.add_argument(
        "--cheapest", action="store_true",
        help="of the cards in --price, the one that trains a sample for the least money; --write as above",
    )  # fmt: skip
    parser.add_argument(
        "--price", action="append", default=[], metavar="CARD=AMOUNT",
        help="what an hour of a card costs, e.g. h100=2.5; may be repeated",
    )  # fmt: skip
    add_several_gpus_options(parser)
    add_host_option(parser)
    add_compile_option(parser)
    add_json_option(parser)
    add_full_option(parser)
    add_html_option(parser)
    add_force_option(parser)
    add_job_options(parser)


def _named_card(args: argparse.Namespace, loaded: LoadedJob) -> GpuSpec:
    """The card that was asked for, else the job's own."""
    from vramcast.features.check.check import card_to_check
    from vramcast.prediction.predict import choose_card

    return card_to_check(loaded.job, args.gpu, args.memory, args.device)[0] or choose_card(loaded.job, None)[0]


def _several_cards(args: argparse.Namespace, loaded: LoadedJob, workers: int) -> int:
    """--fewest-gpus, --fastest or --cheapest."""
    from vramcast.cli.progress import reporting

    with reporting() as progress:
        document, lines, ways = _question(args)(args, loaded, workers, progress)
    if args.json:
        print_json(document)
    else:
        print(*map(sentence, lines), sep="\n")
    return _written(args, loaded, ways)


def _question(args: argparse.Namespace) -> Callable[..., _Answer]:
    return _fewest if args.fewest_gpus else _fastest if args.fastest else _cheapest


def _fewest(args: argparse.Namespace, loaded: LoadedJob, workers: int, progress: Callable[[str], None]) -> _Answer:
    from vramcast.features.advise.fewest import fewest_cards
    from vramcast.report.fewest import fewest_document, fewest_lines

    found = fewest_cards(loaded, _named_card(args, loaded), workers=workers, progress=progress)
    return fewest_document(found), fewest_lines(found, loaded.where), found.ways


def _fastest(args: argparse.Namespace, loaded: LoadedJob, workers: int, progress: Callable[[str], None]) -> _Answer:
    from vramcast.base.errors import UsageError
    from vramcast.features.advise.layouts import fastest_layouts
    from vramcast.report.layouts import fastest_document, fastest_lines

    if args.cards_per_node is None and loaded.job.gpus.count == 1:
        raise UsageError("--fastest needs --gpus N (and --nodes M): how many cards there are")
    found = fastest_layouts(loaded, _named_card(args, loaded), workers=workers, progress=progress)
    return fastest_document(found), fastest_lines(found, loaded.where), found.ways


def _cheapest(args: argparse.Namespace, loaded: LoadedJob, workers: int, progress: Callable[[str], None]) -> _Answer:
    from vramcast.features.advise.cheapest import cheapest, read_prices
    from vramcast.report.layouts import cheapest_document, cheapest_lines

    found = cheapest(loaded, read_prices(args.price), workers=workers, progress=progress)
    return cheapest_document(found), cheapest_lines(found, loaded.where), found.ways


def _written(args: argparse.Namespace, loaded: LoadedJob, ways: Sequence[HasChanges]) -> int:
    """The exit code; with --write, the best as a config."""
    if args.write is not None and ways:
        from vramcast.base.outputs import write_file
        from vramcast.features.advise.layout_configs import layout_config

        write_file(args.write, layout_config(loaded, ways[0].changes, args.write).encode(), replace=False)
        print(f"vramcast: {sentence(f'wrote {args.write}')}", file=sys.stderr)
    return EXIT_FITS if ways else EXIT_DOES_NOT_FIT


def execute(args: argparse.Namespace) -> int:
    from vramcast.cli.progress import reporting
    from vramcast.features.advise.advise import advise

    check_output(args.html, REPORT, force=args.force)
    loaded = load(args)
    workers = forks_possible(args)
    if args.fewest_gpus or args.fastest or args.cheapest:
        return _several_cards(args, loaded, workers)
    with reporting() as progress:
        result = advise(
            loaded, args.gpu, args.memory, args.device, keep=args.keep, also=args.also, objective=args.objective,
            largest=args.largest, write=args.write, workers=workers, progress=progress,
        )  # fmt: skip
    if args.html is not None:
        from vramcast.report.html_report import advice_report

        write_html(args.html, lambda: advice_report(result.advice))
    if args.json:
        print_json(result.to_document())
    elif args.full:
        from vramcast.report.advice import advice_page
        from vramcast.report.page import print_page

        print_result(result, lambda console: print_page(advice_page(result.advice), console))
    else:
        print_result(result)
    if args.write is not None:
        outcome = (
            f"wrote {args.write}" if result.fits else f"--write {args.write}: nothing fits, so nothing was written"
        )
        print(f"vramcast: {sentence(outcome)}", file=sys.stderr)
    return EXIT_FITS if result.fits else EXIT_DOES_NOT_FIT
