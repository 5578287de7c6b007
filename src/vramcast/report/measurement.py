"""A measurement as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramcast.base.units import format_gib
from vramcast.features.compare.results import Result, measured_result
from vramcast.report.wording import seconds


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
    if result.loading is not None:
        console.print()
        for line in loading_lines(result.loading, result.seconds["step"]):
            console.print(Text(line))
    if result.module_peaks:
        console.print()
        console.print(_modules(result))


def loading_lines(loading: Mapping[str, Any], step_seconds: float) -> list[str]:
    workers = loading["workers"]
    by = "by the loop itself" if not workers else f"with {workers} worker{'' if workers == 1 else 's'}"
    each = loading["seconds_per_sample"]
    sample = "" if each is None else f", {seconds(each)} of one process a sample"
    lines = [f"data loading alone, {by}: {seconds(loading['seconds_per_batch'])} a batch{sample}"]
    needed = loading["workers_needed"]
    enough = "" if needed is None else f"; {needed} worker{'' if needed == 1 else 's'} keep up"
    if not workers:
        lines.append(f"each step waits for it{enough}")
    elif loading["seconds_per_step"] > step_seconds:
        lines.append(f"slower than the step, {seconds(step_seconds)}, which waits for it{enough}")
    else:
        lines.append(f"hidden behind the step, {seconds(step_seconds)}")
    if each is not None and loading["samples"]:
        lines.append(
            f"in a job: dataset: {{size: {loading['samples']}, seconds_per_sample: {each:.4g}, workers: {workers}}}"
        )
    return lines


def _phases(result: Result) -> Table:
    table = _table("phase", "allocated", "reserved", "time")
    for phase in dict.fromkeys([*result.phases, *result.seconds]):
        peaks = result.phases.get(phase)
        time = result.seconds.get(phase)
        table.add_row(
            phase,
            "" if peaks is None else format_gib(peaks.allocated_bytes),
            "" if peaks is None else format_gib(peaks.reserved_bytes),
            "" if time is None else f"{time * 1e3:.2f} ms",
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
