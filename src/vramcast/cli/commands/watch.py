"""Draw the memory of the cards here, live, beside the predicted peak; start a command or follow a process.

Without --pid and --command the whole cards are watched, until Ctrl-C. A command may also stand after `--`:
vramcast watch --job job.yaml -- python train.py. The exit code is then the command's. No process is ever ended: Ctrl-C
in a terminal reaches the command by itself. Outside a terminal there are plain lines.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.base.plain_text import printable
from vramcast.cli.job_options import JOB_HELP, add_code_option, load_alone
from vramcast.cli.options import EXIT_FITS, add_json_option, device_number, positive

if TYPE_CHECKING:
    from vramcast.features.watch.history import History

READS_SCRIPT_FLAGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=positive, action="append", metavar="N", help="follow this process and all that "
                        "it starts, until it ends; may be given several times")  # fmt: skip
    parser.add_argument("--command", metavar="COMMAND", help="start this and watch it; no shell is used")
    parser.add_argument(
        "--device", type=device_number, metavar="N", help="watch only this card, as CUDA counts them from 0"
    )
    predicted = parser.add_mutually_exclusive_group()
    predicted.add_argument("--job", metavar="JOB", help=f"draw its predicted peak as a line; {JOB_HELP}")
    predicted.add_argument("--predicted", metavar="SIZE", help="the same, as `vramcast predict` gave it (14.8GiB)")
    add_code_option(parser)
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (%(default)g)"
    )
    parser.add_argument(
        "--threshold", type=_share, default=0.9, metavar="SHARE",
        help="warn once when a card is fuller than this (%(default)g)",
    )  # fmt: skip
    parser.add_argument("--log", type=Path, metavar="FILE", help="add every sample to a .csv or .jsonl file")
    parser.add_argument("--once", action="store_true", help="look once and end")
    parser.add_argument(
        "--replay", type=Path, metavar="LOG", help="draw what a log recorded, instead of the cards here"
    )
    add_json_option(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.features.watch.history import History

    words = _command_words(args)
    _check(args, words)
    history = History(threshold=args.threshold, predicted_bytes=_predicted(args))
    if args.replay is not None:
        return _replay(args, history)
    from vramcast.cli.watching import watch_live

    return watch_live(args, words, history)


def _replay(args: argparse.Namespace, history: History) -> int:
    import sys

    from vramcast.cli.options import print_json
    from vramcast.features.watch.log import read_log
    from vramcast.report.console import emit
    from vramcast.report.watch import summary_document, summary_lines, warning_texts, watch_view

    log = read_log(args.replay)
    samples = log.last_run()
    if history.predicted_bytes is None:
        history.predicted_bytes = log.predicted_bytes
    history.subject = f"recorded in {args.replay.name}"
    warnings = [warning for sample in samples for warning in history.add(sample)]
    if args.json:
        print_json(summary_document(history))
        return EXIT_FITS
    emit(lambda console: console.print(watch_view(history, console.width)), sys.stdout)
    print(printable("\n".join([*warning_texts(warnings), *summary_lines(history)])))
    return EXIT_FITS


def _command_words(args: argparse.Namespace) -> list[str]:
    import shlex

    from vramcast.base.errors import UsageError

    if args.command is None:
        return list(args.script_flags)
    if args.script_flags:
        raise UsageError("--command and a command after `--`: leave one out")
    try:
        words = shlex.split(args.command)
    except ValueError as error:
        raise UsageError(f"--command: {error} in {args.command!r}") from None
    if not words:
        raise UsageError("--command: it is empty; write what you start the training with")
    return words


def _check(args: argparse.Namespace, words: list[str]) -> None:
    from vramcast.base.errors import UsageError

    if words and args.pid:
        raise UsageError("--pid and --command: follow a process, or start one; leave one out")
    if args.replay is not None:
        for option in ("pid", "device", "log", "once"):
            if getattr(args, option):
                raise UsageError(f"--{option}: --replay draws what was recorded; leave one out")
        if words:
            raise UsageError("--command: --replay draws what was recorded; leave one out")
    if args.once and words:
        raise UsageError("--once: a command takes longer than one look; leave one out")


def _predicted(args: argparse.Namespace) -> int | None:
    if args.predicted is not None:
        from vramcast.base.units import parse_bytes

        return parse_bytes(args.predicted)
    if args.job is None:
        return None
    from vramcast.cli.progress import reporting
    from vramcast.prediction.predict import predict

    loaded = load_alone(args)
    assert loaded is not None
    with reporting() as progress:
        return predict(loaded, progress=progress).device_bytes


def _seconds(text: str) -> float:
    value = _number(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"seconds from 0.05 to 3600 are needed, not {text!r}")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"a share of the card is needed, e.g. 0.9, not {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
