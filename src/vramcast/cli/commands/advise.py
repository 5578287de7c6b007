"""Say what to change so that a job fits, with what each change costs, ready to paste.

JOB and the card are what `vramcast check` takes; a training command may stand after `--`. Everything that is printed
has been traced and replayed on the virtual card. The batch of an optimizer step (batch × GPUs × accumulation) stays
what it is. Exit code 1: nothing fits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vramcast.cli.job_options import add_job_argument, add_job_options, load
from vramcast.cli.options import (
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    add_host_option,
    add_json_option,
    add_room_options,
    free_workers,
    names,
    print_json,
)

READS_SCRIPT_FLAGS = True
RUNS_CODE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser)
    add_room_options(parser)
    parser.add_argument(
        "--keep", metavar="A,B", type=names, default=(),
        help="leave these alone: batch, checkpointing, allocator, precision, optimizer, sequence, resolution, frames, "
        "trained",
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
    add_host_option(parser)
    add_json_option(parser)
    add_job_options(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.cli.progress import reporting
    from vramcast.features.advise.advise import advise

    loaded = load(args)
    workers = free_workers()
    with reporting() as progress:
        found = advise(
            loaded, args.gpu, args.memory, args.device, keep=args.keep, objective=args.objective,
            largest=args.largest, write=args.write, workers=workers, progress=progress,
        )  # fmt: skip
    if args.json:
        print_json(found.to_document())
    else:
        from vramcast.report.advice import advice_page
        from vramcast.report.console import emit
        from vramcast.report.page import print_page

        emit(lambda console: print_page(advice_page(found.advice), console), sys.stdout)
    if args.write is not None:
        said = f"wrote {args.write}" if found.fits else f"--write {args.write}: nothing fits, so nothing was written"
        print(f"vramcast: {said}", file=sys.stderr)
    return EXIT_FITS if found.fits else EXIT_DOES_NOT_FIT
