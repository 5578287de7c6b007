"""Measured operators, as `measure.op_times` records them, made into samples for the fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families import parts_of
from vramcast.timing.costs.fitting import Sample
from vramcast.timing.costs.signature import parse_arguments

_FAR = 4
_LAUNCH_SECONDS = 2e-6


def samples_from_rows(rows: Iterable[Mapping[str, Any]], card: Card) -> list[Sample]:
    """A row counts by the square root of the time it would ideally take in all: large ones more, but not alone, and
    those for which a library chose a kernel many times slower than it could be no more than others."""
    samples = []
    for row in rows:
        tf32 = bool(row.get("tf32"))
        parts, _ = parts_of(row["op"], parse_arguments(row["args"]), card, tf32=tf32, cudnn_tf32=True)
        # The text of a copy does not say that memory is pinned; ordinary memory is what it is taken for.
        pinned = any("Pinned -> Device" in kernel for kernel in row.get("kernels", ()))
        if parts and row["total_ns"] and not pinned:
            seconds = row["total_ns"] / row["count"] * 1e-9
            usual = min(seconds, _FAR * sum(part.base + _LAUNCH_SECONDS * part.kernels for part in parts))
            weight = (usual * row["count"] * 1e6) ** 0.5
            samples.append(Sample(parts, seconds, weight, len(row.get("kernels", ()))))
    return samples
