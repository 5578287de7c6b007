"""How sure a predicted time is: the spread of measured over predicted on recorded workloads."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

# A card that was never measured: the error of the specification alone on the H200, in both directions
# (docs/lab/accuracy.md).


@cache
def _spread() -> dict[str, tuple[float, float]]:
    data = json.loads(files("vramcast.timing").joinpath("errors.json").read_text(encoding="utf-8"))
    return {name: (float(low), float(high)) for name, (low, high) in data["measured_over_predicted"].items()}


def interval(seconds: float, *, calibrated: bool) -> tuple[float, float]:
    """Nine of ten recorded workloads lie between the two."""
    low, high = _spread()["calibrated" if calibrated else "specification"]
    return seconds * low, seconds * high
