"""A comparison as a table: one line a figure, one column a result, differences from the reference beside them."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from vramcast.base.language import sentence
from vramcast.base.units import GIB
from vramcast.features.compare.side_by_side import BYTES, Comparison, Row
from vramcast.report.page import Grid, print_page
from vramcast.report.wording import signed_percent

MAIN_GROUPS = ("peak", "at the peak", "time")
"""What one screen has room for."""


def print_comparison(comparison: Comparison, console: Console) -> None:
    reference = comparison.columns[comparison.reference]
    console.print(Text(f"differences are from {reference.name} ({reference.kind}, {reference.gpu})"))
    for grid in all_grids(comparison):
        console.print()
        print_page([grid], console)


def all_grids(comparison: Comparison) -> list[Grid]:
    """Every figure, group by group."""
    groups = dict.fromkeys(row.group for row in comparison.rows)
    return [_grid(comparison, group, [row for row in comparison.rows if row.group == group]) for group in groups]


def main_grids(comparison: Comparison) -> list[Grid]:
    """The figures of the whole run, without phases, steps and modules."""
    found = []
    for group in MAIN_GROUPS:
        rows = [row for row in comparison.rows if row.group == group]
        if rows:
            found.append(_grid(comparison, group, rows))
    return found


def _grid(comparison: Comparison, group: str, rows: list[Row]) -> Grid:
    unit = "GiB" if rows[0].unit == BYTES else "ms"
    compared = [_is_compared(comparison, rows, column) for column in range(len(comparison.columns))]
    headings = [f"{sentence(group)} ({unit})"]
    for column, with_difference in zip(comparison.columns, compared, strict=True):
        headings += [column.name, "diff", "%"] if with_difference else [column.name]
    reference = comparison.reference
    return Grid(tuple(headings), tuple((row.name, *_cells(row, row.values[reference], compared)) for row in rows))


def _is_compared(comparison: Comparison, rows: list[Row], column: int) -> bool:
    """Whether any line of this column has something in the reference to be compared with."""
    reference = comparison.reference
    return column != reference and any(None not in (row.values[column], row.values[reference]) for row in rows)


def _cells(row: Row, base: float | None, compared: list[bool]) -> list[str]:
    scale = GIB if row.unit == BYTES else 1e-3
    digits = 3 if row.unit == BYTES else 2
    cells = []
    for value, with_difference in zip(row.values, compared, strict=True):
        cells.append("–" if value is None else f"{value / scale:.{digits}f}")
        if with_difference:
            if value is None or base is None:
                cells += ["", ""]
            else:
                cells += [f"{(value - base) / scale:+.{digits}f}", signed_percent(value, base)]
    return cells
