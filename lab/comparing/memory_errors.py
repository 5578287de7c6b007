"""How far measured memory lies from what was predicted, by group of runs: src/vramcast/memory/errors.json.

`make accuracy` writes it. The margin and the interval of every prediction come from this file
(vramcast/memory/margin.py)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab import ROOT
from lab.comparing.errors import relative_error
from lab.comparing.predictions import Comparison
from lab.comparing.time_errors import TimeComparison, predicted_before
from lab.comparing.times import combined, measured_times
from lab.external.score import Evaluation
from lab.practice import __main__ as practice
from lab.zoo import records as zoo
from lab.zoo.manifest import load as load_zoo
from lab.zoo.page import Row
from lab.zoo.records import Records
from vramcast.memory.margin import ASSUMED, ASSUMED_TOPICS, OTHER_CARD, OTHER_CARD_CONVOLUTIONS, RECORDED

ERRORS = ROOT / "src" / "vramcast" / "memory" / "errors.json"
GPUS = ("h200",)
"""Cards whose runs are recorded here; a run on any other is in the groups of the published ones."""
SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)


def update(
    comparisons: Iterable[Comparison], external: Evaluation | None, torch_version: str, path: Path = ERRORS
) -> None:
    """Write the groups that there are runs of; the others stay as they were. The predictions are of `torch_version`."""
    answered = [c for c in comparisons if not c.error]
    groups: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["groups"] if path.is_file() else {}
    if answered:
        groups[RECORDED] = group([*recorded_errors(answered), *blind_errors()], "steps recorded on an H200")
    groups[ASSUMED] = group(script_errors(), "scripts recorded on an H200 in which values were assumed")
    if external is not None:
        groups[OTHER_CARD] = group(
            [s.total_error for s in external.scored if s.trusted],
            "runs that others published of an A100, an RTX 3060 and an RTX 4060",
        )
        groups[OTHER_CARD_CONVOLUTIONS] = group(
            [s.total_error for s in external.scored if s.convolution and not s.flagged],
            "convolutional networks that others published of an A100, an RTX 3060 and an RTX 4060",
        )
    document = {"torch": torch_version, "gpus": list(GPUS), "groups": groups}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def group(errors: Sequence[float], of: str) -> dict[str, Any]:
    """Share of the runs → the largest error among them."""
    ordered = sorted(abs(error) for error in errors)
    return {
        "of": of,
        "runs": len(ordered),
        "within": {str(share): round_up(ordered[math.ceil(share * len(ordered)) - 1]) for share in SHARES},
    }


def round_up(share: float) -> float:
    """To a hundredth of a percent, so that the run that sets the limit lies within it."""
    return math.ceil(share * 1e4) / 1e4


def recorded_errors(comparisons: Iterable[Comparison]) -> list[float]:
    """Of what the process took on the card, as the driver says; where that is not known, of what was reserved."""
    return [c.reserved_error if c.device_error is None else c.device_error for c in comparisons]


def blind_errors() -> list[float]:
    """Of runs that were predicted before they were measured, as it was written down then."""
    known, before = measured_times(), predicted_before()
    return [
        TimeComparison(combined(known[name]), figures).reserved_error
        for name, figures in before.items()
        if name in known and figures.reserved_bytes
    ]


def script_errors() -> list[float]:
    """Of public scripts and practice scripts whose predictions assumed something."""
    return [relative_error(predicted, measured) for predicted, measured in [*_zoo(), *_practice()]]


def _zoo() -> list[tuple[int, int]]:
    """(predicted, measured), reserved, as predicted by default."""
    predicted, measured = Records(zoo.PREDICTED).by_script, Records(zoo.MEASURED).by_script
    rows = [Row(script, predicted.get(name, {}), measured.get(name, {})) for name, script in load_zoo().items()]
    return [
        (
            int(row.predicted.get("without_options_bytes") or row.predicted_bytes),
            int(row.measured["peak_reserved_bytes"]),
        )
        for row in rows
        if row.error is not None and any(note["topic"] in ASSUMED_TOPICS for note in row.predicted["notes"])
    ]


def _practice() -> list[tuple[int, int]]:
    predicted, measured = Records(practice.PREDICTED).by_script, Records(practice.MEASURED).by_script
    return [
        (said["peak_reserved_bytes"], measured[name]["peak_reserved_bytes"])
        for name, said in predicted.items()
        if said.get("outcome") == "answered" and said["notes"] and measured.get(name, {}).get("outcome") == "measured"
    ]
