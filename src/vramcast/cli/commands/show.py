"""Ask a saved trace again: another card, another limit, every byte by kind or module.

Reads what `vramcast run --save` wrote and replays it through the allocator. A memory snapshot of PyTorch
(torch.cuda.memory._dump_snapshot), of any size, is shown by line of code. Needs neither the script nor torch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.cli.options import (
    CHROME_TRACE,
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    REPORT,
    add_card_options,
    add_chrome_option,
    add_export_option,
    add_force_option,
    add_host_option,
    add_html_option,
    add_json_option,
    check_export,
    check_output,
    device_number,
    limit_bytes,
    positive,
    print_json,
    report,
    write_chrome,
    write_export,
    write_html,
)

if TYPE_CHECKING:
    from rich.console import Console

    from vramcast.memory import Prediction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_card_options(parser)
    parser.add_argument(
        "--by", choices=("kind", "module"), help="only the account at the peak, in full, by one of these"
    )
    parser.add_argument("--at-peak", action="store_true", help="only the account at the peak, by kind and by module")
    parser.add_argument(
        "--picture",
        action="store_true",
        help="bars by kind, the step as a line of blocks, modules as a tree",
    )
    parser.add_argument("--depth", type=positive, metavar="N", help="with --picture: levels of the tree of modules (3)")
    parser.add_argument("--plain", action="store_true", help="with --picture: ASCII alone, without colours")
    add_host_option(parser)
    add_json_option(parser)
    add_html_option(parser)
    add_export_option(parser)
    add_chrome_option(parser)
    add_force_option(parser)
    parser.add_argument("--device", type=device_number, metavar="N", help="the card of a snapshot that has several")
    parser.add_argument(
        "trace", type=Path, metavar="TRACE", help="a file that `vramcast run --save` wrote, or a memory snapshot"
    )


def execute(args: argparse.Namespace) -> int:
    check_output(args.chrome, CHROME_TRACE, force=args.force)
    check_output(args.html, REPORT, force=args.force)
    check_export(args.export, force=args.force)
    from vramcast.features.snapshot.snapshot import is_snapshot

    if is_snapshot(args.trace):
        return _show_snapshot(args)
    from vramcast.base.errors import UsageError
    from vramcast.gpus import find_gpu
    from vramcast.memory import predict, with_time
    from vramcast.trace import StepTrace

    prediction = predict(
        StepTrace.load(args.trace),
        gpu=None if args.gpu is None else find_gpu(args.gpu),
        capacity_bytes=limit_bytes(args),
        allocator_conf=args.allocator_conf,
    )
    if (args.depth is not None or args.plain) and not args.picture:
        raise UsageError("--depth and --plain are for --picture")
    is_whole = not (args.by or args.at_peak or args.picture)
    has_time = args.json or args.html is not None or is_whole
    if has_time:
        prediction = with_time(prediction)
    if args.chrome is not None:
        write_chrome(args.chrome, prediction.trace, prediction.gpu)
    write_export(args.export, prediction)
    if args.html is not None:
        from vramcast.report.html_report import prediction_report

        write_html(args.html, lambda: prediction_report(prediction))
    if args.json or is_whole:
        return report(prediction, as_json=args.json)

    from vramcast.report.console import emit
    from vramcast.report.terminal import print_account, print_every_module, print_kinds

    account = prediction.account
    if args.picture:
        emit(lambda console: _picture(args, prediction, console), sys.stdout)
    elif args.by == "kind":
        emit(lambda console: print_kinds(account.parts, account.device_bytes, console), sys.stdout)
    elif args.by == "module":
        emit(lambda console: print_every_module(account, console), sys.stdout)
    else:
        emit(lambda console: print_account(account, console), sys.stdout)
    return EXIT_FITS if prediction.fits else EXIT_DOES_NOT_FIT


def _picture(args: argparse.Namespace, prediction: Prediction, console: Console) -> None:
    from rich.text import Text

    from vramcast.report.text_picture import USUAL_DEPTH, picture_lines

    first, *lines = picture_lines(prediction, console.width, depth=args.depth or USUAL_DEPTH, plain=args.plain)
    console.print(Text(first, style="" if args.plain else "bold green" if prediction.fits else "bold red"))
    for line in lines:
        console.print(Text(line), no_wrap=True, overflow="ignore", crop=False)


def _show_snapshot(args: argparse.Namespace) -> int:
    from vramcast.base.errors import UsageError
    from vramcast.cli.progress import reporting
    from vramcast.features.snapshot.snapshot import read_snapshot
    from vramcast.report.console import emit
    from vramcast.report.page import print_page
    from vramcast.report.snapshot import snapshot_document, snapshot_page, snapshot_report

    given = ("gpu", "limit", "allocator_conf", "chrome", "export", "by")
    if args.picture:
        raise UsageError("--picture: a memory snapshot is drawn by --html FILE")
    unfit = next((f"--{name.replace('_', '-')}" for name in given if getattr(args, name) is not None), None)
    if unfit is not None:
        raise UsageError(f"{unfit}: a memory snapshot is what was measured, and cannot be asked for anything else")
    with reporting() as progress:
        found = read_snapshot(args.trace, args.device, progress)
    write_html(args.html, lambda: snapshot_report(found))
    if args.json:
        print_json(snapshot_document(found))
    else:
        emit(lambda console: print_page(snapshot_page(found), console), sys.stdout)
    return EXIT_FITS
