"""A measurement as text."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramcast.memory.results import Result, measured_result
from vramcast.units import format_gib


def print_measurement(document: dict[str, Any], console: Console) -> None:
    result = measured_result(document.get("source", "measurement"), document)
    console.print(Text(f"{result.name} on {result.gpu}, {len(result.steps)} steps", style="bold"))
    device = "unknown" if result.device_bytes is None else format_gib(result.device_bytes)
    console.print(
        Text(
            f"peak allocated {format_gib(result.peak_allocated_bytes)}, "
            f"reserved {format_gib(result.peak_reserved_bytes)}, on the device {device}"
        )
    )
    console.print()
    console.print(_phases(result))
    if result.module_peaks:
        console.print()
        console.print(_modules(result))


def _phases(result: Result) -> Table:
    table = _table("phase", "allocated", "reserved", "time")
    for phase in dict.fromkeys([*result.phases, *result.seconds]):
        peaks = result.phases.get(phase)
        seconds = result.seconds.get(phase)
        table.add_row(
            phase,
            "" if peaks is None else format_gib(peaks.allocated_bytes),
            "" if peaks is None else format_gib(peaks.reserved_bytes),
            "" if seconds is None else f"{seconds * 1e3:.2f} ms",
        )
    return table


def _modules(result: Result) -> Table:
    table = _table("module", "allocated at most in forward")
    for name, peak in result.module_peaks.items():
        table.add_row(name, format_gib(peak))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", overflow="fold")
    return table
