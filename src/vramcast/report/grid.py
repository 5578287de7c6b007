"""How a table looks in a terminal."""

from __future__ import annotations

from rich.table import Table


def table(*headings: str, text_columns: int = 1) -> Table:
    """No lines but one under the heading, so that it reads the same in a terminal, a file and a log."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, heading in enumerate(headings):
        is_text = i < text_columns or heading in ("mostly", "source")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold", no_wrap=False)
    return table
