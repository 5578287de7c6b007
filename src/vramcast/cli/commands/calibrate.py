"""Time the operators of the GPU here, so that predictions of time rest on it and not on its specification.

Takes about two minutes and needs a GPU. The file goes where predictions look for it, or to --out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vramcast.cli.options import CALIBRATION, EXIT_FITS, add_force_option, add_json_option, check_output, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu-device",
        type=_device,
        default=0,
        metavar="N",
        help="which card of this machine, as CUDA counts them (default 0)",
    )
    parser.add_argument(
        "--minutes", type=_minutes, default=2.0, metavar="M", help="how long to time operators (default %(default)g)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the calibration here, not to the usual place")
    add_force_option(parser)
    add_json_option(parser)


def execute(args: argparse.Namespace) -> int:
    from vramcast.cli.progress import reporting
    from vramcast.features.measure.calibration.worker import calibrate
    from vramcast.timing.costs.calibration import own_place

    check_output(args.out, CALIBRATION, force=args.force)
    with reporting() as progress:
        calibration, figures = calibrate(args.gpu_device, args.minutes, progress)
    place = args.out or own_place(calibration.gpu)
    place.parent.mkdir(parents=True, exist_ok=True)
    calibration.save(place)
    if args.json:
        head = {"format": "vramcast-calibration-run", "version": 1, "file": str(place), "gpu": calibration.gpu}
        print_json(head | {"source": calibration.source, **figures, "host_seconds": dict(calibration.host)})
        return EXIT_FITS

    from vramcast.report.calibration import calibration_page
    from vramcast.report.console import emit
    from vramcast.report.page import print_page

    emit(lambda console: print_page(calibration_page(calibration, figures, str(place)), console), sys.stdout)
    return EXIT_FITS


def _device(text: str) -> int:
    if not text.isdecimal() or len(text) > 4:
        raise argparse.ArgumentTypeError(f"the number of a card is needed, e.g. 0, not {text!r}")
    return int(text)


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 120:
        raise argparse.ArgumentTypeError(f"minutes above zero are needed, e.g. 2, not {text!r}")
    return value
