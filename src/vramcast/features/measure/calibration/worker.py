"""Times the card, fits the curves, makes the calibration.

`vramcast calibrate` calls it. It needs torch and nothing else, so that it also runs with `python -m` where the rest is
not installed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError, VramcastError
from vramcast.gpus import find_gpu
from vramcast.gpus.spec import GpuSpec
from vramcast.timing.costs.calibration import Calibration
from vramcast.timing.costs.card import Card
from vramcast.timing.costs.fitting import fit
from vramcast.timing.costs.samples import samples_from_rows

_LEAST_OPERATORS = 200


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def calibrate(
    device: int,
    minutes: float,
    progress: Callable[[str], None] = say,
    rows_to: Path | None = None,
    turn: int = 1,
) -> tuple[Calibration, dict[str, Any]]:
    """The calibration, and figures about how it was made; `rows_to` keeps every timed operator (JSON, gzipped).
    Another `turn` times other sizes."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("calibrating needs a GPU that PyTorch can use; there is none here")
    if device >= torch.cuda.device_count():
        raise UsageError(f"--gpu-device {device}: there are {torch.cuda.device_count()} GPUs here, counted from 0")
    torch.cuda.set_device(device)

    from vramcast.features.measure.calibration.host import host_costs
    from vramcast.features.measure.calibration.sweep import sweep
    from vramcast.features.measure.driver_state import environment

    here = environment()
    spec = _card_here(torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device))
    progress(f"calibrating {here['gpu']} with torch {here['torch']}: about {minutes:g} minutes")
    host = host_costs()
    swept = sweep(60 * minutes, progress, turn)
    if rows_to is not None:
        text = json.dumps({"environment": here, "host": host, **swept}, separators=(",", ":"))
        rows_to.write_bytes(gzip.compress(text.encode(), mtime=0))
    if len(swept["rows"]) < _LEAST_OPERATORS:
        raise CannotPredict(f"only {len(swept['rows'])} operators could be timed; allow more with --minutes")
    kinds = fit(samples_from_rows(swept["rows"], Card(spec)))
    now = datetime.now(UTC)
    versions = {name: str(here[name]) for name in ("gpu", "driver", "torch", "cuda", "cudnn", "python")}
    source = f"measured on {here['gpu']}, torch {here['torch']}, {now:%Y-%m-%d}"
    calibration = Calibration(
        gpu=spec.id, source=source, date=f"{now:%Y-%m-%d}", environment=versions, kinds=kinds, host=host
    )
    figures = {"cases": swept["cases"], "operators": len(swept["rows"]), "failed": swept["failed"], "kinds": len(kinds)}
    return calibration, figures


def _card_here(name: str, properties: Any) -> GpuSpec:
    """The card in the list, or one of its size and multiprocessors where it is not listed."""
    try:
        return find_gpu(name)
    except UsageError:
        spec = GpuSpec.from_memory(
            int(properties.total_memory), compute_capability=(properties.major, properties.minor)
        )
        return GpuSpec.from_dict(
            spec.to_dict() | {"id": name, "name": name, "sm_count": properties.multi_processor_count}
        )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vramcast.features.measure.calibration.worker", description=__doc__)
    parser.add_argument("--gpu-device", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=Path, help="keep every timed operator here (JSON, gzipped)")
    parser.add_argument("--turn", type=int, default=1, help="another number draws other sizes")
    args = parser.parse_args(argv)
    try:
        calibration, figures = calibrate(args.gpu_device, args.minutes, rows_to=args.rows, turn=args.turn)
    except VramcastError as error:
        print(f"vramcast: {error}", file=sys.stderr)
        return error.exit_code
    calibration.save(args.out)
    print(json.dumps(figures | {"host": dict(calibration.host)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
