"""Run a training script on a virtual GPU and say what it would take.

Name the script, or write the whole command as you would start it: python -m pkg.train, torchrun train.py,
accelerate launch train.py. It is run as it is, with its own arguments, and needs no GPU: wherever it says "cuda" it
gets a card that computes nothing and counts every byte. It is stopped after a few optimizer steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.cli.options import (
    CHROME_TRACE,
    REPORT,
    TRACE,
    add_calibration_option,
    add_card_options,
    add_chrome_option,
    add_export_option,
    add_force_option,
    add_full_option,
    add_html_option,
    add_json_option,
    add_write_through_option,
    check_export,
    check_output,
    forks_possible,
    limit_bytes,
    report,
    step_count,
    write_chrome,
    write_export,
    write_html,
)
from vramcast.cli.progress import announced
from vramcast.cli.ranks import add_rank_options, chosen_ranks, is_one_process, on_cards, predict_ranks
from vramcast.cli.second_runs import VALUES_CPU_SECONDS, in_full, second_run, wants_values, with_values
from vramcast.cli.streams import lent_to_script

if TYPE_CHECKING:
    from vramcast.memory import Prediction

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
    add_rank_options(parser)
    add_json_option(parser)
    add_full_option(parser)
    add_html_option(parser)
    add_export_option(parser)
    add_chrome_option(parser)
    parser.add_argument("--save", type=Path, metavar="TRACE", help="keep the trace, for `vramcast show` and `compare`")
    add_force_option(parser)
    add_write_through_option(parser)
    parser.add_argument(
        "--traceback", action="store_true", help="when the script or vramcast fails, show where and why"
    )
    parser.add_argument(
        "--assume", action="append", default=[], metavar="FILE:LINE=VALUE",
        help="what a read of the card gives in that line, where only a real run would know; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--compute-values", action=argparse.BooleanOptionalAction,
        help="compute every op on the CPU too, so that values which the script reads are not assumed (default: where "
        "sizes follow from them and it takes a minute or two)",
    )  # fmt: skip
    parser.add_argument(
        "--with", dest="packages", action="append", default=[], metavar="PACKAGE",
        help="a package of kernels that will be installed and is not here (flash-attn, xformers, ...); may be repeated",
    )  # fmt: skip
    command = parser.add_argument(
        "command", nargs=argparse.PARSER, metavar="COMMAND",
        help="the script with its own arguments, or the command that starts it (torchrun, accelerate launch, ...)",
    )  # fmt: skip
    module = parser.add_argument(
        "-m",
        action=_Module,
        nargs=argparse.REMAINDER,
        metavar="",
        help="MODULE [ARGUMENT ...]: run a module, as python -m does",
    )
    module.command = command  # type: ignore[attr-defined]


class _Module(argparse.Action):
    """-m MODULE and all that follows it is the command."""

    command: argparse.Action

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        namespace.command = ["python", "-m", *values]
        self.command.required = False


def execute(args: argparse.Namespace) -> int:
    from vramcast import overlay
    from vramcast.base.assumptions import parse_assumption
    from vramcast.base.errors import CannotPredict, UsageError
    from vramcast.base.units import LARGEST_BYTES
    from vramcast.cli.shell_scripts import without_shell
    from vramcast.gpus.detect import chosen_gpu
    from vramcast.launchers import read_command
    from vramcast.trace import Note

    words, said = without_shell(args.command[1:] if args.command[0] == "--" else args.command, args)
    launch = read_command(words)
    if not launch.is_module and not os.path.isfile(launch.target):
        raise UsageError(f"no such script: {launch.target}")
    launch = on_cards(launch, args.gpus, args.nodes, one_process=args.one_process)
    ranks = chosen_ranks(args.rank, launch.world_size)
    assume = [parse_assumption(text) for text in args.assume]
    check_output(args.save, TRACE, force=args.force)
    check_output(args.chrome, CHROME_TRACE, force=args.force)
    check_output(args.html, REPORT, force=args.force)
    check_export(args.export, force=args.force)
    limit = limit_bytes(args)
    spec, remark = chosen_gpu(args.gpu)

    may_fork = forks_possible(args) > 1

    if args.whole or args.epoch:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # gives the verdict of what was seen
    try:
        # With --json, standard output holds the document and nothing else, whatever the script prints.
        with lent_to_script(output_to_errors=args.json), announced(Path(launch.target)) as progress:

            def run_rank(
                rank: int, *, limit: int | None = limit, compute_values: bool = bool(args.compute_values)
            ) -> Prediction:
                from vramcast.scripts.runner import run_script

                return run_script(
                    launch.target,
                    launch.arguments_of(rank),
                    gpu=spec,
                    is_module=launch.is_module,
                    environment=launch.environment_of(rank),
                    removed=launch.removed,
                    assume=assume,
                    compute_values=compute_values,
                    packages=args.packages,
                    cards=args.gpus,
                    steps=None if args.whole else args.steps,
                    until="epoch" if args.epoch else "longest" if args.longest else None,
                    allocator_conf=args.allocator_conf,
                    limit_bytes=limit,
                    progress=progress if rank == ranks[0] else _silent,
                )

            run_without_limit = run_with_values = None
            if (launch.world_size == 1 or args.gpus) and may_fork:
                run_without_limit = functools.partial(run_rank, limit=LARGEST_BYTES)
            if launch.world_size == 1 and may_fork and args.compute_values is None:
                run_with_values = functools.partial(run_rank, compute_values=True)
            with (
                second_run(run_without_limit) as unlimited,
                second_run(run_with_values, cpu_seconds=VALUES_CPU_SECONDS) as valued,
            ):
                prediction, of_ranks = predict_ranks(ranks, launch.world_size, run_rank)
                if prediction.at_least and (launch.world_size == 1 or is_one_process(prediction)):
                    progress("once more without a limit")
                    prediction = in_full(prediction, unlimited, limit)
                elif run_with_values is not None and wants_values(prediction):
                    progress("once more on the CPU: sizes follow from values")
                    prediction = with_values(prediction, valued)
    except CannotPredict as error:
        if args.traceback:
            print(getattr(error, "traceback_text", ""), end="", file=sys.stderr)
        raise
    if args.save is not None and prediction.trace is not None:
        prediction.trace.save(args.save)
    if args.chrome is not None:
        write_chrome(args.chrome, prediction.trace, prediction.gpu)
    more = [Note("launcher", text) for text in (*said, *launch.notes)]
    if remark is not None:
        more.append(Note("card", remark))
    prediction = dataclasses.replace(prediction, notes=(*prediction.notes, *more))
    write_export(args.export, prediction)
    if args.html is not None:
        from vramcast.report.html_report import prediction_report

        write_html(args.html, lambda: prediction_report(prediction, ranks=of_ranks))
    document = {"files": overlay.latest().to_document(), **({"ranks": of_ranks} if of_ranks else {})}
    return report(prediction, as_json=args.json, full=args.full, more=document)


def _silent(text: str) -> None: ...
