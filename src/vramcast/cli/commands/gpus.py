"""List the cards that vramcast knows, or all that is known of one, with sources; --here: the ones in this machine."""

from __future__ import annotations

import argparse
import sys

from vramcast.base.language import sentence
from vramcast.cli.options import EXIT_FITS, add_json_option, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_option(parser)
    parser.add_argument("--here", action="store_true", help="what is used and free on the cards here, and by whom")
    parser.add_argument("name", nargs="?", metavar="NAME", help="a card, to see every figure and where it comes from")


def execute(args: argparse.Namespace) -> int:
    from vramcast.base.errors import UsageError
    from vramcast.gpus import all_gpus, find_gpu

    if args.here and args.name is not None:
        raise UsageError(f"--here and {args.name}: the cards of this machine, or a known one; leave one out")
    if args.here:
        return _here(as_json=args.json)
    if args.json:
        specs = all_gpus() if args.name is None else (find_gpu(args.name),)
        print_json({"format": "vramcast-gpus", "version": 1, "gpus": [spec.to_dict() for spec in specs]})
        return EXIT_FITS

    from vramcast.report.cards import print_card, print_cards
    from vramcast.report.console import emit

    if args.name is None:
        emit(lambda console: print_cards(all_gpus(), console), sys.stdout)
        print("\n" + sentence("in this machine:"))
        return _here(as_json=False)
    spec = find_gpu(args.name)
    emit(lambda console: print_card(spec, console), sys.stdout)
    return EXIT_FITS


def _here(*, as_json: bool) -> int:
    from vramcast.gpus.state import survey
    from vramcast.report.local_cards import local_document, local_page

    cards = survey()
    if as_json:
        print_json(local_document(cards))
        return EXIT_FITS

    from vramcast.report.console import emit
    from vramcast.report.page import print_page

    emit(lambda console: print_page(local_page(cards), console), sys.stdout)
    return EXIT_FITS
