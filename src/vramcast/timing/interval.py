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


_BY_VALUES = 2.0
"""Where values decide how often a loop runs, a step takes from half to twice as long as the one that was seen. Five of
the zoo's public scripts were from 0.83 to 1.66 times as long; more are not known."""


def interval(seconds: float, *, calibrated: bool, by_values: bool = False) -> tuple[float, float]:
    """Nine of ten recorded workloads lie between the two. `by_values`: sizes, or how often a loop runs, follow from
    values."""
    low, high = _spread()["calibrated" if calibrated else "specification"]
    if by_values:
        low, high = min(low, 1 / _BY_VALUES), max(high, _BY_VALUES)
    return seconds * low, seconds * high
