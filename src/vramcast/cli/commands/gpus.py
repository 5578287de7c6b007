"""List the cards that vramcast knows, or all that is known of one, with sources."""

from __future__ import annotations

import argparse
import sys

from vramcast.cli.options import EXIT_FITS, add_json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a card, to see every figure and where it comes from")


def execute(args: argparse.Namespace) -> int:
    from vramcast.gpus import all_gpus, find_gpu

    if args.json:
        specs = all_gpus() if args.name is None else (find_gpu(args.name),)
        print_json({"format": "vramcast-gpus", "version": 1, "gpus": [spec.to_dict() for spec in specs]})
        return EXIT_FITS

    from vramcast.report.cards import print_card, print_cards
    from vramcast.report.console import emit

    if args.name is None:
        emit(lambda console: print_cards(all_gpus(), console), sys.stdout)
    else:
        spec = find_gpu(args.name)
        emit(lambda console: print_card(spec, console), sys.stdout)
    return EXIT_FITS
