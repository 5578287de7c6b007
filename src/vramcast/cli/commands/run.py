"""Run a training script on a virtual GPU and say what it would take.

The script is run as it is, with its own arguments, and needs no GPU: wherever it says "cuda" it gets a card
that computes nothing and counts every byte. It is stopped after a few optimizer steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from pathlib import Path

from vramcast.cli.options import (
    CHROME_TRACE,
    TRACE,
    add_calibration_option,
    add_card_options,
    add_chrome_option,
    add_force_option,
    add_json_option,
    add_write_through_option,
    card_for,
    check_output,
    limit_bytes,
    report,
    step_count,
    use_calibration,
    write_chrome,
)
from vramcast.cli.progress import announced
from vramcast.cli.streams import lent_to_script

RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_card_options(parser)
    add_calibration_option(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps", type=step_count, default=3, metavar="N", help="stop after N optimizer steps (default %(default)s)"
    )
    length.add_argument(
        "--whole", action="store_true", help="run on to the script's end: evaluation, later stages; Ctrl-C ends it"
    )
    length.add_argument(
        "--epoch", action="store_true", help="run one epoch of the training loader, and the evaluation after it"
    )
    length.add_argument(
        "--longest", action="store_true", help="find the loader's longest batches on the CPU, and run those"
    )
    add_json_option(parser)
    add_chrome_option(parser)
    parser.add_argument("--save", type=Path, metavar="TRACE", help="keep the trace, for `vramcast show` and `compare`")
    add_force_option(parser)
    add_write_through_option(parser)
    parser.add_argument("--traceback", action="store_true", help="when the script itself fails, show where and why")
    parser.add_argument("script", type=Path, metavar="script.py", help="the training script")
    parser.add_argument("script_args", nargs=argparse.REMAINDER, metavar="...", help="its own arguments")


def execute(args: argparse.Namespace) -> int:
    from vramcast import overlay
    from vramcast.errors import CannotPredict, UsageError
    from vramcast.trace import Note

    if not args.script.is_file():
        raise UsageError(f"no such script: {args.script}")
    check_output(args.save, TRACE, force=args.force)
    check_output(args.chrome, CHROME_TRACE, force=args.force)
    use_calibration(args)
    limit = limit_bytes(args)
    spec, remark = card_for(args.gpu)

    from vramcast.virtual_gpu.runner import run_script

    if args.whole or args.epoch:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # gives the verdict of what was seen
    try:
        # With --json, standard output holds the document and nothing else, whatever the script prints.
        with lent_to_script(output_to_errors=args.json), announced(args.script) as progress:
            prediction = run_script(
                os.fspath(args.script),
                args.script_args,
                gpu=spec,
                steps=None if args.whole else args.steps,
                until="epoch" if args.epoch else "longest" if args.longest else None,
                allocator_conf=args.allocator_conf,
                limit_bytes=limit,
                progress=progress,
            )
    except CannotPredict as error:
        if args.traceback:
            print(getattr(error, "traceback_text", ""), end="", file=sys.stderr)
        raise
    if args.save is not None and prediction.trace is not None:
        prediction.trace.save(args.save)
    if args.chrome is not None:
        write_chrome(args.chrome, prediction.trace, prediction.gpu)
    if remark is not None:
        prediction = dataclasses.replace(prediction, notes=(*prediction.notes, Note("card", remark)))
    return report(prediction, as_json=args.json, more={"files": overlay.latest().to_document()})
