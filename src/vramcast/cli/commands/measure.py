"""Run a script or a factory on the real GPU, in a process of its own, and say what it took.

The target is a training script with its arguments, which is stopped after a few optimizer steps, or
module:function, a factory that builds a job and returns its training step. `vramcast compare` sets the saved
result beside a prediction. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from vramcast.base.processes import ending_with_this
from vramcast.cli.options import (
    EXIT_FITS,
    MEASUREMENT,
    REPORT,
    add_force_option,
    add_html_option,
    add_json_option,
    check_output,
    positive,
    print_json,
    write_html,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=positive, default=6, metavar="N", help="optimizer steps to measure (default %(default)s)"
    )
    parser.add_argument(
        "--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument of the factory; may be repeated"
    )
    add_json_option(parser)
    add_html_option(parser)
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the result, for `vramcast compare`")
    add_force_option(parser)
    parser.add_argument("target", metavar="script.py|module:factory", help="what to run")
    parser.add_argument("target_args", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")


def execute(args: argparse.Namespace) -> int:
    from vramcast.base.language import language
    from vramcast.base.outputs import write_file

    check_output(args.save, MEASUREMENT, force=args.force)
    check_output(args.html, REPORT, force=args.force)
    job = {
        "target": args.target,
        "script_args": args.target_args,
        "factory_args": _factory_arguments(args.arg),
        "steps": args.steps,
        "language": language(),
    }
    # A process of its own: the caching allocator and the context of this one would be measured too.
    command = [sys.executable, "-m", "vramcast.features.measure.worker", str(os.getpid()), json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, preexec_fn=ending_with_this())
    if done.returncode != 0 or not done.stdout:
        return done.returncode if done.returncode in (1, 2) else 3
    document: dict[str, Any] = json.loads(done.stdout)
    if args.save is not None:
        write_file(args.save, (json.dumps(document, indent=1) + "\n").encode())
    if args.html is not None:
        from vramcast.report.html_report import measurement_report

        write_html(args.html, lambda: measurement_report(document))
    if args.json:
        print_json(document)
        return EXIT_FITS

    from vramcast.report.console import emit
    from vramcast.report.measurement import print_measurement

    emit(lambda console: print_measurement(document, console), sys.stdout)
    return EXIT_FITS


def _factory_arguments(pairs: list[str]) -> dict[str, Any]:
    from vramcast.base.errors import UsageError

    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--arg {pair!r}: write it as NAME=VALUE, e.g. --arg batch=8")
        try:
            arguments[name] = json.loads(text)
        except (ValueError, RecursionError):
            arguments[name] = text
    return arguments
