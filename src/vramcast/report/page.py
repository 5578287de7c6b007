"""Lines and tables that are shown alike in a terminal and in a notebook: a verb makes them once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from vramcast.base.language import sentence
from vramcast.report.grid import table
from vramcast.report.names import cell


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    tone: str = ""
    """good, bad, heading, aside, code (in columns, and never wrapped, so that it can be copied), or nothing."""
    continues: bool = False
    """It goes on with the sentence of the line before."""


@dataclass(frozen=True, slots=True)
class Grid:
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    """How many of the first columns are words; figures stand to the right."""
    total: tuple[str, ...] | None = None


Page = Sequence[Line | Grid]

_TERMINAL = {"good": "bold green", "bad": "bold red", "heading": "bold", "aside": "dim"}
_HTML = {
    "good": "color:#1a7f37;font-weight:bold",
    "bad": "color:#b00020;font-weight:bold",
    "heading": "font-weight:bold",
    "aside": "opacity:0.7",
    "code": "font-family:monospace;white-space:pre",
}


def spoken_page(page: Page) -> Page:
    """In the language in force. Code and columns of figures stay as they are."""
    return [_spoken_line(part) if isinstance(part, Line) else spoken_grid(part) for part in page]


def _spoken_line(line: Line) -> Line:
    return line if line.tone == "code" else replace(line, text=sentence(line.text))


def spoken_grid(grid: Grid) -> Grid:
    def row(cells: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(cell(text) for text in cells)

    total = None if grid.total is None else row(grid.total)
    return replace(grid, headings=tuple(map(sentence, grid.headings)), rows=tuple(map(row, grid.rows)), total=total)


def print_page(page: Page, console: Console) -> None:
    page = spoken_page(page)
    for i, part in enumerate(page):
        if isinstance(part, Line):
            _print_line(part, console)
            continue
        if i and isinstance(page[i - 1], Line):
            console.print()
        grid = table(*part.headings, text_columns=part.text_columns)
        for row in part.rows:
            grid.add_row(*row)
        if part.total is not None:
            grid.add_section()
            grid.add_row(*part.total, style="bold")
        console.print(grid)
        if i + 1 < len(page):
            console.print()


def _print_line(line: Line, console: Console) -> None:
    """What is indented goes on below itself; code is left as it is."""
    style = _TERMINAL.get(line.tone, "")
    words = line.text.lstrip(" ")
    if line.tone == "code" or not words:
        console.print(Text(line.text, style=style), soft_wrap=True)
        return
    indent = len(line.text) - len(words)
    console.print(Padding(Text(words, style=style), (0, 0, 0, indent), expand=False))


def page_html(page: Page) -> str:
    return f'<div class="vramcast">{"".join(_html(part) for part in spoken_page(page))}</div>'


def _html(part: Line | Grid) -> str:
    if isinstance(part, Line):
        style = f' style="{_HTML[part.tone]}"' if part.tone in _HTML else ""
        return f"<div{style}>{escape(part.text)}</div>"
    head = "".join(f"<th>{escape(heading)}</th>" for heading in part.headings)
    rows = [_html_row(row, part.text_columns, "td") for row in part.rows]
    if part.total is not None:
        rows.append(_html_row(part.total, part.text_columns, "th"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _html_row(cells: tuple[str, ...], text_columns: int, tag: str) -> str:
    made = []
    for i, text in enumerate(cells):
        indent = len(text) - len(text.lstrip(" "))
        side = "left" if i < text_columns else "right"
        made.append(f'<{tag} style="text-align:{side}">{"&emsp;" * (indent // 2)}{escape(text.strip())}</{tag}>')
    return f"<tr>{''.join(made)}</tr>"
