"""Say in a few lines whether a job fits what is free here, or a card. The exit code says the same.

JOB is what `vramcast predict` takes; a training command may stand after `--`. With no GPU here and none named, the
job's target or an RTX 4090 is taken.

--arch fno, unet, ddpm or transformer is a plain network of that kind instead of a JOB. Without either it is the quick
formula, for when there is no model yet: one tensor of activations a layer,
batch × sequence × height × width × hidden × bytes, times the layers, against 70 % of the card. That is a rule of
thumb and no prediction; it answers at once and does not load PyTorch.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import TYPE_CHECKING

from vramcast.base.language import sentence
from vramcast.cli.cards_options import add_several_gpus_options
from vramcast.cli.job_options import JOB_HELP, add_job_argument, add_job_options, job_named
from vramcast.cli.options import (
    EXIT_DOES_NOT_FIT,
    EXIT_FITS,
    add_full_option,
    add_json_option,
    add_room_options,
    forks_possible,
    positive,
    print_json,
    print_result,
)

if TYPE_CHECKING:
    from vramcast.quick import QuickQuestion

READS_SCRIPT_FLAGS = True
RUNS_CODE = True
_LABEL = 12
"""Columns in front of what the quick formula says."""
_OF_A_NETWORK = ("hidden_dim", "num_layers")
_QUICK_ONLY = ("hidden_dim", "num_layers", "gpu_memory", "bytes", "threshold")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job_argument(parser, help=f"{JOB_HELP}; without it: the quick formula")
    add_room_options(parser)
    parser.add_argument(
        "--margin",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of that memory that must stay free (default 0)",
    )
    add_json_option(parser)
    add_full_option(parser)
    quick = parser.add_argument_group("the quick formula (no JOB)")
    quick.add_argument("--gpu-memory", metavar="GIB", help="memory of the card (default: that of the card here)")
    quick.add_argument("--bytes", type=positive, metavar="N", help="bytes of one number (default 4)")
    quick.add_argument(
        "--threshold", type=float, metavar="SHARE", help="share of the card that activations may take (default 0.7)"
    )
    add_several_gpus_options(parser)
    add_job_options(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.base.errors import UsageError

    args.job, args.config = job_named(args), None
    if args.job is None and args.arch is None and not args.script_flags:
        if args.margin:
            raise UsageError("--margin is for a job; the quick formula has --threshold")
        return _quick(args)
    if args.arch is not None and args.gpu_memory is not None and args.memory is None:
        args.memory, args.gpu_memory = str(_gib(args.gpu_memory, "--gpu-memory")), None
    for name in _QUICK_ONLY:
        if getattr(args, name) is not None and not (args.arch is not None and name in _OF_A_NETWORK):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} belongs to the quick formula, which takes no JOB; leave {args.job or 'the command'} out"
            )
    return _job(args)


def _job(args: argparse.Namespace) -> int:
    from vramcast.cli.job_options import load
    from vramcast.cli.progress import reporting
    from vramcast.features.check.check import check

    loaded = load(args)
    with reporting() as progress:
        result = check(
            loaded,
            args.gpu,
            args.memory,
            args.device,
            margin=args.margin,
            workers=forks_possible(args),
            progress=progress,
        )
    if args.json:
        print_json(result.to_document())
    elif args.full:
        from vramcast.report.job import print_job

        print_result(result, lambda console: print_job(result.prediction.job_account(), console))
    else:
        print_result(result)
    return EXIT_FITS if result.fits else EXIT_DOES_NOT_FIT


def _quick(args: argparse.Namespace) -> int:
    from vramcast.quick import answer
    from vramcast.quick.words import document, lines

    question, card = _question(args)
    result = answer(question)
    if args.json:
        print_json(document(result, card))
    else:
        width = shutil.get_terminal_size().columns
        for row in map(sentence, lines(result, card)):
            indent = " " * _LABEL if row[:_LABEL].endswith("  ") else ""
            print(textwrap.fill(row, width, subsequent_indent=indent, break_on_hyphens=False))
    return EXIT_FITS if result.safe else EXIT_DOES_NOT_FIT


def _question(args: argparse.Namespace) -> tuple[QuickQuestion, str]:
    from vramcast.base.errors import UsageError
    from vramcast.quick import QuickQuestion
    from vramcast.quick.formula import DTYPE_BYTES, THRESHOLD

    missing = [f"--{name}" for name in ("hidden-dim", "num-layers") if getattr(args, name.replace("-", "_")) is None]
    if missing:
        raise UsageError(
            "name a job (vramcast check ./my-model), or a kind of network (--arch fno, unet, ddpm, transformer), or, "
            f"for the quick formula, add {' and '.join(missing)}"
        )
    for name in ("precision", "optimizer", "checkpointing", "model", "size_frames", "changes", "inference"):
        if getattr(args, name):
            option = name.removeprefix("size_").replace("changes", "set")
            raise UsageError(f"--{option}: the quick formula knows only sizes; name a job for it")
    element_bytes = args.bytes
    if args.dtype is not None:
        if args.dtype not in DTYPE_BYTES:
            raise UsageError(f"--dtype {args.dtype}: write one of {', '.join(DTYPE_BYTES)}")
        if element_bytes not in (None, DTYPE_BYTES[args.dtype]):
            raise UsageError(f"--dtype {args.dtype} and --bytes {element_bytes} disagree; leave one out")
        element_bytes = DTYPE_BYTES[args.dtype]
    card_bytes, card = _card(args)
    question = QuickQuestion(
        batch=args.size_batch or 1,
        sequence=args.size_sequence or 1,
        height=args.size_height or 1,
        width=args.size_width or 1,
        hidden_dim=args.hidden_dim,
        layers=args.num_layers,
        element_bytes=element_bytes or 4,
        threshold=THRESHOLD if args.threshold is None else args.threshold,
        card_bytes=card_bytes,
    )
    return question, card


def _card(args: argparse.Namespace) -> tuple[int, str]:
    """Bytes of the card, and its name where it has one."""
    from vramcast.base.errors import UsageError
    from vramcast.base.units import MIB

    given = [name for name in ("gpu_memory", "gpu", "memory", "device") if getattr(args, name) is not None]
    if len(given) > 1:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{options}: the card is said twice; leave one out")
    if args.gpu_memory is not None or args.memory is not None:
        option = "--gpu-memory" if args.gpu_memory is not None else "--memory"
        return _gib(args.gpu_memory if args.gpu_memory is not None else args.memory, option), ""
    if args.gpu is not None:
        from vramcast.gpus import find_gpu

        spec = find_gpu(args.gpu)
        return spec.memory_mib * MIB, spec.short_name
    from vramcast.gpus.state import local_gpu, local_gpus

    here = local_gpu(args.device) if args.device is not None else next(iter(local_gpus()), None)
    if here is None:
        raise UsageError("--gpu-memory: there is no GPU here to ask; write --gpu-memory 24, or --gpu rtx-4090")
    return here.total_bytes, here.name


def _gib(text: str, option: str) -> int:
    """A bare number is GiB, and GB means the same, as on a card's box."""
    from vramcast.base.errors import UsageError
    from vramcast.base.units import GIB, TIB, parse_bytes

    plain = text.strip()
    try:
        if plain.replace(".", "", 1).isdecimal():
            plain += "GiB"
        size = parse_bytes(plain.lower().replace("gb", "gib").replace("mb", "mib"))
    except (UsageError, ValueError, OverflowError):
        raise UsageError(f"{option} {text}: write the card's memory in GiB, e.g. 24") from None
    if not GIB // 8 <= size <= 16 * TIB:
        raise UsageError(f"{option} {text}: no card has that much or that little; a bare number is GiB, e.g. 24")
    return size
