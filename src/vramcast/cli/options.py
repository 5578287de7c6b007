"""Options that several verbs share."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramcast.gpus import GpuSpec
    from vramcast.memory import Prediction
    from vramcast.trace import StepTrace

EXIT_FITS = 0
EXIT_DOES_NOT_FIT = 1
MOST_STEPS = 1000
_MOST_DIGITS, _MOST_SHOWN = 18, 40
_WORKERS = 2

_BEGINNING_BYTES = 4096

TRACE, CHROME_TRACE = "vramcast-trace", "vramcast-step"
MEASUREMENT, CALIBRATION = "vramcast-measurement", "vramcast-calibration/1"
"""How files that we write name themselves, near their beginning."""


def add_card_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="NAME", help='the card: "rtx-4090", "A100 80GB", or a size, "24GiB"')
    parser.add_argument(
        "--limit", metavar="SIZE", help="let PyTorch reserve at most this (24GiB) instead of what the card has"
    )
    parser.add_argument("--allocator-conf", metavar="CONF", help="what PYTORCH_CUDA_ALLOC_CONF would say")


def add_calibration_option(parser: argparse.ArgumentParser) -> None:
    """How fast the card and the host are that a time is predicted for."""
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="times of operators from `vramcast calibrate --out FILE`"
    )
    add_host_option(parser)


def use_calibration(args: argparse.Namespace) -> None:
    """For everything that is predicted in this process."""
    if args.calibration is None:
        return
    from vramcast.gpus import find_gpu
    from vramcast.timing.costs import Calibration

    given = Calibration.load(args.calibration)
    if args.gpu is not None:
        given.check_card(find_gpu(args.gpu).id)
    os.environ["VRAMCAST_CALIBRATION"] = str(args.calibration.resolve())


def add_host_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--host", metavar="WHICH",
        help="the processor that issues the work: undisturbed (the default), here (this computer: a second's "
        "benchmark), or how many times as long it takes as an undisturbed one, as in 1.3",
    )  # fmt: skip


@contextlib.contextmanager
def chosen_host(args: argparse.Namespace) -> Iterator[None]:
    """Around a verb: the host that it and the processes it starts predict times for."""
    wanted = getattr(args, "host", None)
    if wanted is None:
        yield
        return
    from vramcast.timing.host import HERE, HOST_VARIABLE, parse_host

    if wanted == HERE:
        from vramcast.features.measure.host_benchmark import slowdown_here

        wanted = f"{slowdown_here():.3f}:{HERE}"
    parse_host(wanted)
    before = os.environ.get(HOST_VARIABLE)
    os.environ[HOST_VARIABLE] = wanted
    try:
        yield
    finally:
        os.environ.pop(HOST_VARIABLE)
        if before is not None:
            os.environ[HOST_VARIABLE] = before


def add_room_options(parser: argparse._ActionsContainer) -> None:
    """What a job is held against: a named card, or what is free here."""
    parser.add_argument("--gpu", metavar="NAME", help='a card instead of the one here: "rtx-4090", or a size, "24GiB"')
    parser.add_argument("--memory", metavar="SIZE", help="what is there for the job (24GiB), CUDA context included")
    parser.add_argument(
        "--device", "--device-id", type=device_number, metavar="N", help="the card here, as CUDA counts them (0)"
    )


def device_number(text: str) -> int:
    if not text.isdecimal() or len(text) > 4:
        raise argparse.ArgumentTypeError(f"the number of a card is needed, e.g. 0, not {text!r}")
    return int(text)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON (described in docs/json.md)")


def limit_bytes(args: argparse.Namespace) -> int | None:
    from vramcast.base.units import parse_bytes

    return None if args.limit is None else parse_bytes(args.limit)


def positive(text: str) -> int:
    value = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"a whole number above zero is needed, not {text[:_MOST_SHOWN]!r}")
    return value


def step_count(text: str) -> int:
    """Steps that are run one by one."""
    value = positive(text)
    if value > MOST_STEPS:
        raise argparse.ArgumentTypeError(
            f"at most {MOST_STEPS:,} steps are traced: what a step takes is known after a few"
        )
    return value


def free_workers() -> int:
    """How many runs may be traced at a time, in forks: one where torch was used, which a fork would not survive."""
    return min(_WORKERS, os.cpu_count() or 1) if "torch" not in sys.modules else 1


def print_json(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def report(prediction: Prediction, *, as_json: bool, more: dict[str, Any] | None = None) -> int:
    """Print the prediction and give the exit code. `more` is for the JSON document."""
    if as_json:
        from vramcast.report.documents import prediction_document

        print_json(prediction_document(prediction) | (more or {}))
    else:
        from vramcast.report.console import emit
        from vramcast.report.terminal import print_prediction

        emit(lambda console: print_prediction(prediction, console), sys.stdout)
    return EXIT_FITS if prediction.fits else EXIT_DOES_NOT_FIT


def card_for(name: str | None) -> tuple[GpuSpec, str | None]:
    """The card asked for, or the one in this machine, or a stated default; and a remark where it was a guess."""
    from vramcast.gpus import find_gpu
    from vramcast.gpus.detect import detect_gpu

    if name is not None:
        return find_gpu(name), None
    here = detect_gpu()
    if here is not None:
        return here, f"no --gpu given: the card in this machine, {here.short_name}, is taken"
    spec = find_gpu("rtx-4090")
    return spec, f"no --gpu given and no GPU here: {spec.short_name} is taken"


def add_write_through_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--write-through", action="store_true",
        help="let the code's writes and deletions be real; by default its files go to a throw-away overlay",
    )  # fmt: skip


def kept_off_files(args: argparse.Namespace, *, own_process: bool) -> AbstractContextManager[object]:
    """Around a verb: where it may run the user's code, what that writes is thrown away. In a process that is not our
    own only the code itself is run so (see `overlay.protected`)."""
    is_formula = getattr(args, "hidden_dim", None) is not None and args.arch is None
    if not args.runs_code or is_formula:
        return contextlib.nullcontext()
    from vramcast import overlay

    if args.write_through:
        return overlay.written_through()
    return overlay.protected(own_process=True) if own_process else contextlib.nullcontext()


def add_force_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="write over a file that is there, whatever it is")


def check_output(path: Path | None, kind: str, *, force: bool) -> None:
    """Find out before the work, not after it, that the result cannot be saved. What says of itself that it is of this
    `kind` comes from an earlier run of the same command, and may be replaced."""
    from vramcast.base.errors import UsageError

    if path is None:
        return
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"cannot save to {path}: there is no folder {folder}")
    if path.is_dir():
        raise UsageError(f"cannot save to {path}: it is a folder")
    if path.is_file() and not force and path.stat().st_size and f'"{kind}"'.encode() not in _beginning(path):
        raise UsageError(f"{path} exists and is something else; --force writes over it, or name another file")


def _beginning(path: Path) -> bytes:
    import zlib

    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
        if beginning.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(wbits=31).decompress(beginning, _BEGINNING_BYTES)
        return beginning
    except (OSError, zlib.error):
        return b""


def add_chrome_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chrome", type=Path, metavar="FILE", help="write the predicted step as a trace for ui.perfetto.dev"
    )


def write_chrome(path: Path, trace: StepTrace | None, gpu: GpuSpec) -> None:
    """The last step of the trace, op by op, on host and card."""
    from vramcast.base.errors import UsageError
    from vramcast.base.outputs import write_file
    from vramcast.report.chrome_trace import chrome_trace
    from vramcast.timing import predict_step

    time = None if trace is None else predict_step(trace, gpu, keep_rows=True)
    if trace is None or time is None or time.rows is None:
        raise UsageError("--chrome: the trace does not hold the ops of a whole step; trace the run again")
    document = chrome_trace(time.rows, f"{trace.source or 'a step'} on {gpu.short_name}")
    write_file(path, json.dumps(document).encode())


def names(text: str) -> tuple[str, ...]:
    """An option's list, as in --keep batch,precision."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
