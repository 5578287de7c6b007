"""Options that several verbs share."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from vramcast.gpus import GpuSpec
    from vramcast.memory import Prediction
    from vramcast.report.html_report import Report
    from vramcast.report.page import Page
    from vramcast.trace import StepTrace

EXIT_FITS = 0
LANGUAGES = ("en", "zh")
EXIT_DOES_NOT_FIT = 1
MOST_STEPS = 1000
_WORKERS = 2
_MOST_DIGITS, _MOST_SHOWN = 18, 40

_BEGINNING_BYTES = 4096
EXPORT = "vramcast-export"
"""What no file says of itself: exports are in formats of other programs, so one is replaced with --force alone."""

TRACE, CHROME_TRACE, REPORT = "vramcast-trace", "vramcast-step", "vramcast-report"
MEASUREMENT, CALIBRATION = "vramcast-measurement", "vramcast-calibration/1"
"""How files that we write name themselves, near their beginning."""


def add_card_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", metavar="NAME", help='the card: "rtx-4090", "A100 80GB", or a size, "24GiB"')
    parser.add_argument(
        "--limit", metavar="SIZE", help="let PyTorch reserve at most this (24GiB) instead of what the card has"
    )
    parser.add_argument("--allocator-conf", metavar="CONF", help="what PYTORCH_CUDA_ALLOC_CONF would say")


def add_calibration_option(parser: argparse.ArgumentParser) -> None:
    """Options that say for how fast a card and host a time is predicted."""
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="times of operators from `vramcast calibrate --out FILE`"
    )
    add_host_option(parser)


def add_host_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--host", metavar="WHICH",
        help="speed of the processor that issues the work: undisturbed (the default), here (this computer, "
        "timed for a second), or a factor: 1.3 is a processor that takes 1.3 times as long",
    )  # fmt: skip


def chosen_timing(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Around a verb: the host and the calibration that it predicts times for."""
    host, calibration = getattr(args, "host", None), getattr(args, "calibration", None)
    if host is None and not isinstance(calibration, Path):
        return contextlib.nullcontext()
    from vramcast.timing.host import HERE, parse_host
    from vramcast.timing.settings import timed_for

    if host is not None:
        if host == HERE:
            from vramcast.features.measure.host_benchmark import slowdown_here

            host = f"{slowdown_here():.3f}:{HERE}"
        parse_host(host)
    if calibration is not None:
        _check_calibration(calibration, args.gpu)
        calibration = calibration.resolve()  # a script may change the folder
    return timed_for(host=host, calibration=calibration)


def _check_calibration(path: Path, gpu: str | None) -> None:
    from vramcast.gpus import find_gpu
    from vramcast.timing.costs import Calibration

    given = Calibration.load(path)
    if gpu is not None:
        given.check_card(find_gpu(gpu).id)


def add_room_options(parser: argparse._ActionsContainer) -> None:
    """Options that say what a job must fit: a named card, or what is free here."""
    parser.add_argument("--gpu", metavar="NAME", help='a card instead of the one here: "rtx-4090", or a size, "24GiB"')
    parser.add_argument("--memory", metavar="SIZE", help="what is there for the job (24GiB), CUDA context included")
    parser.add_argument(
        "--device",
        "--device-id",
        type=device_number,
        metavar="N",
        help="which card of this machine, as CUDA counts them (default 0)",
    )


def device_number(text: str) -> int:
    if not text.isdecimal() or len(text) > 4:
        raise argparse.ArgumentTypeError(f"the number of a card is needed, e.g. 0, not {text!r}")
    return int(text)


def add_compile_option(parser: argparse.ArgumentParser) -> None:
    """Knobs that are only turned on request."""
    parser.add_argument(
        "--compile", dest="also", action="append_const", const="compile", default=[],
        help="also try torch.compile (of a compiled job: without it); each such trace takes a minute or more",
    )  # fmt: skip
    parser.add_argument(
        "--attention", dest="also", action="append_const", const="attention",
        help="also try the other ways to compute attention: flash_attention_2, sdpa, eager",
    )  # fmt: skip
    parser.add_argument(
        "--liger", dest="also", action="append_const", const="liger",
        help="also try Liger Kernel (of a job with it: without), where it is installed",
    )  # fmt: skip


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON (described in docs/json.md)")


def forks_possible(args: argparse.Namespace) -> int:
    """Processes that may trace at a time: one where something was run that a fork would not survive. In a process of
    our own a reader may have imported a class, and torch with it: that starts none of torch's threads, while numpy
    starts one for each processor, which a fork does without."""
    cores = os.cpu_count() or 1
    is_fresh = "torch" not in sys.modules or (args.own_process and 0 < _n_threads() <= cores)
    return min(_WORKERS, cores) if is_fresh else 1


def _n_threads() -> int:
    """Threads of this process, those of libraries included; 0 where the system does not tell (only Linux does)."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def add_full_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="print every table instead of one screen")


def print_result(result: object, full: Callable[[Console], None] | None = None) -> None:
    """One screen of it, or with `full` all that there is."""
    from vramcast.report.console import emit
    from vramcast.report.looks import screen

    if full is None:
        print_lines(lambda width: screen(result, width))
    else:
        emit(full, sys.stdout)


def print_lines(made: Callable[[int], Page]) -> None:
    """What `made` gives for the width of the terminal."""
    from vramcast.report.console import emit
    from vramcast.report.page import print_page

    emit(lambda console: print_page(made(console.width), console), sys.stdout)


def limit_bytes(args: argparse.Namespace) -> int | None:
    from vramcast.base.units import parse_bytes

    return None if args.limit is None else parse_bytes(args.limit)


def positive(text: str) -> int:
    if text.isdecimal() and len(text) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"a number of {len(text):,} digits is too large")
    value = int(text) if text.isdecimal() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"a whole number above zero is needed, not {text[:_MOST_SHOWN]!r}")
    return value


def step_count(text: str) -> int:
    """Parse a number of steps that are run one by one."""
    value = positive(text)
    if value > MOST_STEPS:
        raise argparse.ArgumentTypeError(
            f"at most {MOST_STEPS:,} steps are traced: what a step takes is known after a few"
        )
    return value


def print_json(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def report(prediction: Prediction, *, as_json: bool, full: bool = True, more: dict[str, Any] | None = None) -> int:
    """Print the prediction and give the exit code. `more` is for the JSON document."""
    if as_json:
        print_json(prediction.to_document() | (more or {}))
    elif full:
        from vramcast.report.terminal import print_prediction

        print_result(prediction, lambda console: print_prediction(prediction, console))
    else:
        print_result(prediction)
    return EXIT_FITS if prediction.fits else EXIT_DOES_NOT_FIT


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


def add_html_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a report with pictures: one file that loads nothing (docs/report.md)",
    )


def write_html(path: Path | None, report: Callable[[], Report]) -> None:
    """Write what `report` makes, where a file was asked for."""
    from vramcast.base.outputs import write_file

    if path is not None:
        write_file(path, report().to_html().encode())


def add_language_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lang", choices=LANGUAGES, help="the language of the result (default: that of the locale)")


def language_in(words: Sequence[str]) -> str:
    """The language that a command asks for, before its options are read: help and errors are in it too."""
    from vramcast.base.language import usual_language

    for i, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--lang":
            value = value or next(iter(words[i + 1 : i + 2]), "")
            return value if value in LANGUAGES else usual_language()
        if word == "--":
            break
    return usual_language()


def add_export_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--export", type=Path, metavar="FILE",
        help="write the prediction for other programs: .pickle (PyTorch's memory viewer), .csv, .md, .svg or .png",
    )  # fmt: skip


def check_export(path: Path | None, *, force: bool) -> None:
    if path is not None:
        from vramcast.report.exports import check_format

        check_format(path)
        check_output(path, EXPORT, force=force)


def write_export(path: Path | None, prediction: Prediction) -> None:
    if path is not None:
        from vramcast.base.outputs import write_file
        from vramcast.report.exports import export

        write_file(path, export(prediction, path))


def add_chrome_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chrome", type=Path, metavar="FILE", help="write the predicted step as a trace for ui.perfetto.dev"
    )


def write_chrome(path: Path, trace: StepTrace | None, gpu: GpuSpec) -> None:
    """Write the last step of the trace, op by op, on host and card, for Chrome's viewer."""
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


def import_nothing_from(*folders: Path) -> None:
    """A file there could be imported in place of a library that is loaded later."""
    places = {folder.resolve() for folder in folders}
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() not in places]
