"""A comparison as a table: one line a figure, one column a result, differences from the reference beside them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramcast.base.units import GIB
from vramcast.features.compare.side_by_side import BYTES, Comparison, Row
from vramcast.report.wording import signed_percent


def print_comparison(comparison: Comparison, console: Console) -> None:
    reference = comparison.columns[comparison.reference]
    console.print(Text(f"differences are from {reference.name} ({reference.kind}, {reference.gpu})"))
    for group in dict.fromkeys(row.group for row in comparison.rows):
        rows = [row for row in comparison.rows if row.group == group]
        console.print()
        console.print(_group_table(comparison, group, rows))


def _group_table(comparison: Comparison, group: str, rows: list[Row]) -> Table:
    unit = "GiB" if rows[0].unit == BYTES else "ms"
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(f"{group} ({unit})", overflow="fold")
    compared = [_is_compared(comparison, rows, column) for column in range(len(comparison.columns))]
    for column, with_difference in zip(comparison.columns, compared, strict=True):
        table.add_column(column.name, justify="right", overflow="fold")
        if with_difference:
            table.add_column("diff", justify="right")
            table.add_column("%", justify="right")
    for row in rows:
        table.add_row(row.name, *_cells(row, row.values[comparison.reference], compared))
    return table


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
