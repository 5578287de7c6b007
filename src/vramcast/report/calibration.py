"""What a calibration found, in a few lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.report.page import Grid, Line, Page
from vramcast.timing.costs.calibration import Calibration

_HOST_KINDS = {
    "view": "a view", "elementwise-grad": "an elementwise operator, forward",
    "backward-elementwise": "the same, backward",
    "matmul-grad": "a matrix product, forward", "convolution-grad": "a convolution, forward",
    "linear-module": "a linear layer, as a module", "adamw-foreach": "AdamW, for each parameter",
    "adamw-fused": "fused AdamW, for each parameter", "item": "reading a number (.item())",
}  # fmt: skip


def calibration_page(calibration: Calibration, figures: Mapping[str, Any], place: str) -> Page:
    host = calibration.host
    rows = tuple((label, f"{host[kind] * 1e6:.1f}") for kind, label in _HOST_KINDS.items() if kind in host)
    page: list[Line | Grid] = [
        Line(f"calibrated {calibration.gpu}: {figures['operators']} operators of {figures['kinds']} kinds", "good"),
        Line(calibration.source, "aside"),
    ]
    if figures["failed"]:
        page.append(Line(f"{len(figures['failed'])} cases could not run on this card and were left out", "aside"))
    if rows:
        page.append(Grid(("the host takes for", "µs"), rows))
    return [*page, Line(f"written to {place}")]
