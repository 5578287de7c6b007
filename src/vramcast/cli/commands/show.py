"""Ask a saved trace again: another card, another limit, every byte by kind or module.

Reads what `vramcast run --save` wrote and replays it through the allocator. A memory snapshot of PyTorch
(torch.cuda.memory._dump_snapshot), of any size, is shown by line of code. Needs neither the script nor torch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

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
    print_json,
    report,
    write_chrome,
    write_export,
    write_html,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_card_options(parser)
    parser.add_argument(
        "--by", choices=("kind", "module"), help="only the account at the peak, in full, by one of these"
    )
    parser.add_argument("--at-peak", action="store_true", help="only the account at the peak, by kind and by module")
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
    from vramcast.gpus import find_gpu
    from vramcast.memory import predict, with_time
    from vramcast.trace import StepTrace

    prediction = predict(
        StepTrace.load(args.trace),
        gpu=None if args.gpu is None else find_gpu(args.gpu),
        capacity_bytes=limit_bytes(args),
        allocator_conf=args.allocator_conf,
    )
    is_whole = not (args.by or args.at_peak)
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
    if args.by == "kind":
        emit(lambda console: print_kinds(account.parts, account.device_bytes, console), sys.stdout)
    elif args.by == "module":
        emit(lambda console: print_every_module(account, console), sys.stdout)
    else:
        emit(lambda console: print_account(account, console), sys.stdout)
    return EXIT_FITS if prediction.fits else EXIT_DOES_NOT_FIT


def _show_snapshot(args: argparse.Namespace) -> int:
    from vramcast.base.errors import UsageError
    from vramcast.cli.progress import reporting
    from vramcast.features.snapshot.snapshot import read_snapshot
    from vramcast.report.console import emit
    from vramcast.report.page import print_page
    from vramcast.report.snapshot import snapshot_document, snapshot_page, snapshot_report

    given = ("gpu", "limit", "allocator_conf", "chrome", "export", "by")
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
