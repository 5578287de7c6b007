"""Changes and what the run would be with them: one line each, best first, the run as it is above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramcast.base.units import GIB
from vramcast.features.diagnose.logs.result import WhatIf
from vramcast.report.page import Grid
from vramcast.report.wording import duration, rate, seconds


def what_if_grid(title: str, rows: Sequence[WhatIf]) -> Grid:
    """A column is there when any line has a figure for it."""
    columns = [
        ("GiB", [_memory(row) for row in rows]),
        ("step", [_seconds(row.step_seconds) for row in rows]),
        ("samples/s", [_rate(row.samples_per_second) for row in rows]),
        ("epoch", [_duration(row.epoch_seconds) for row in rows]),
        ("in all", [_duration(row.total_seconds) for row in rows]),
    ]
    shown = [(heading, cells) for heading, cells in columns if any(cell != "–" for cell in cells)]
    lines = tuple((row.change, *(cells[i] for _, cells in shown), row.source) for i, row in enumerate(rows))
    return Grid((title, *(heading for heading, _ in shown), "source"), lines)


def what_if_document(row: WhatIf) -> dict[str, Any]:
    return {
        "change": row.change,
        "source": row.source,
        "step_seconds": row.step_seconds,
        "samples_per_second": row.samples_per_second,
        "epoch_seconds": row.epoch_seconds,
        "total_seconds": row.total_seconds,
        "device_bytes": row.device_bytes,
        "fits": row.fits,
        "why": row.why,
    }


def _memory(row: WhatIf) -> str:
    if row.device_bytes is None:
        return "–"
    return f"{row.device_bytes / GIB:.2f}" + ("" if row.fits is not False else " (does not fit)")


def _seconds(value: float | None) -> str:
    return "–" if value is None else seconds(value)


def _rate(value: float | None) -> str:
    return "–" if value is None else rate(value)


def _duration(value: float | None) -> str:
    return "–" if value is None else duration(value)
