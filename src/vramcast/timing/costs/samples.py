"""Measured operators, as `measure.op_times` records them, made into samples for the fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families import parts_of
from vramcast.timing.costs.families.convolution import TURNED
from vramcast.timing.costs.fitting import Sample
from vramcast.timing.costs.part import Part
from vramcast.timing.costs.signature import parse_arguments

_FAR = 4
_LAUNCH_SECONDS = 2e-6
_TURNS = ("nchwToNhwc", "nhwcToNchw", "tensorTransform", "genericTran")
_DATA_AS_IT_LIES = ("dgrad_engine", "conv1D_NCHW", "dgrad2d", "implicit_convolve")
_WEIGHT_AS_IT_LIES = ("wgrad_alg0", "wgrad2d")


def samples_from_rows(rows: Iterable[Mapping[str, Any]], card: Card) -> list[Sample]:
    """A row counts by the square root of the time it would ideally take in all: large ones more, but not alone, and
    those for which a library chose a kernel many times slower than it could be no more than others."""
    samples = []
    for row in rows:
        parts = parts_of_row(row, card)
        # The text of a copy does not say that memory is pinned; ordinary memory is what it is taken for.
        pinned = any("Pinned -> Device" in kernel for kernel in row.get("kernels", ()))
        if parts and row["total_ns"] and not pinned:
            seconds = row["total_ns"] / row["count"] * 1e-9
            usual = min(seconds, _FAR * sum(part.base + _LAUNCH_SECONDS * part.kernels for part in parts))
            weight = (usual * row["count"] * 1e6) ** 0.5
            samples.append(Sample(parts, seconds, weight, len(row.get("kernels", ()))))
    return samples


def parts_of_row(row: Mapping[str, Any], card: Card) -> list[Part]:
    """The parts of a recorded operator; of a convolution, its kernels say whether it turned its operands."""
    arguments = parse_arguments(row["args"])
    if "convolution" in row["op"]:
        arguments.kwargs[TURNED] = list(turned_by(row.get("kernels", ())))
    return parts_of(row["op"], arguments, card, tf32=bool(row.get("tf32")), cudnn_tf32=True)[0]


def turned_by(kernels: Iterable[str]) -> tuple[bool, bool]:
    """Whether the kernels of a convolution turn operands: for the result or the gradient of the data, and for that of
    the weight."""
    names = list(kernels)
    turns = any(name in kernel for kernel in names for name in _TURNS)
    data = any(name in kernel for kernel in names for name in _DATA_AS_IT_LIES)
    weight = any(name in kernel for kernel in names for name in _WEIGHT_AS_IT_LIES)
    return turns and not data, turns and not weight
