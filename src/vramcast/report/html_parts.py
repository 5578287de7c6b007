"""Pieces of a report as HTML: figures, bars against a limit, tables, places for the pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from vramcast.base.language import say, sentence
from vramcast.base.units import format_gib, format_size
from vramcast.report.page import Grid, Line, Page, spoken_page
from vramcast.trace import Note

_AFTER = re.compile(r"(?<=[._/])")
_ICICLE = "Click a box to look into it, the top one to go back; or arrow keys, Enter and Escape."
_SEGMENTS = "Each line continues the one above; strokes are borders of segments, red frames are holes."


@dataclass(frozen=True, slots=True)
class Bar:
    """One way to run the job, against what the card has."""

    label: str
    size_bytes: int
    fits: bool
    aside: str = ""
    """What it costs, or what to type."""


def data(size_bytes: int, key: str = "", *, gib: bool = False) -> str:
    """A size that a reader sees rounded and a program to the byte; what is missing is shown without its sign."""
    text = format_gib(abs(size_bytes)) if gib else format_size(size_bytes)
    name = f' data-key="{escape(key)}"' if key else ""
    return f'<data value="{size_bytes}"{name}>{text}</data>'


def breakable(name: str) -> str:
    """A long name that may be broken after its dots and underscores, before it is broken anywhere."""
    return f'<span class="wrap">{_AFTER.sub("<wbr>", escape(name))}</span>'


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """`pairs`: a name, and HTML."""
    return f'<dl class="figures">{"".join(f"<div><dt>{escape(n)}</dt><dd>{v}</dd></div>" for n, v in pairs)}</dl>'


def bars(found: Sequence[Bar], limit_bytes: int) -> str:
    if not found:
        return ""
    scale = max(limit_bytes, *(bar.size_bytes for bar in found)) * 1.04
    rows = []
    for bar in found:
        aside = f"<small>{escape(sentence(bar.aside))}</small>" if bar.aside else ""
        over = "" if bar.fits else " over"
        rows.append(
            f'<div class="label wrap">{escape(sentence(bar.label))}{aside}</div>'
            f'<div class="track"><div class="fill{over}" style="width:{100 * bar.size_bytes / scale:.2f}%"></div>'
            f'<div class="limit" style="left:{100 * limit_bytes / scale:.2f}%"></div></div>'
            f'<div class="value">{data(bar.size_bytes, gib=True)}{"" if bar.fits else " ✗"}</div>'
        )
    limit = say("limit {size}", size=format_gib(limit_bytes))
    legend = f'<p class="aside"><span class="limit-sign"></span>{escape(limit)}</p>'
    return f'{legend}<div class="bars">{"".join(rows)}</div>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """Cells are HTML."""

    def cells(tag: str, row: Sequence[str]) -> str:
        sides = ("" if i < text_columns else ' class="n"' for i in range(len(row)))
        return "".join(f"<{tag}{side}>{cell}</{tag}>" for side, cell in zip(sides, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = cells("th", [escape(heading) for heading in headings])
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        if body
        else ""
    )


def page(found: Page) -> str:
    """Lines and grids that a terminal would show."""
    return "".join(_line(part) if isinstance(part, Line) else _grid(part) for part in spoken_page(found))


def notes(found: Iterable[Note]) -> str:
    rows = [
        (escape(sentence(note.topic)), escape(sentence(note.text)), escape(note.where or "–"), f"{note.count:,}")
        for note in found
    ]
    return table((say("assumed"), say("what"), say("where"), say("times")), rows, text_columns=3)


def section(title: str, body: str, kind: str = "") -> str:
    if not body:
        return ""
    return f"<section{f' class={kind}' if kind else ''}><h2>{escape(title)}</h2>{body}</section>"


def memory_place(exactness: str) -> str:
    """Where the chart of the step, its account and its modules go."""
    return f"""<p class="aside">{escape(exactness)}</p>
<ul class="legend"></ul>
<div class="chart"></div>
<div class="row noprint"><button class="to-peak" type="button">{escape(say("To the peak"))}</button>
<label style="flex:1">{escape(say("Moment of the step"))} <input type="range" min="0" value="0"></label></div>
<p class="where wrap" aria-live="polite"></p>
<div class="row noprint"><label>{escape(say("Filter"))}
<input type="search" placeholder="{escape(say("module, op, kind, shape"))}"></label>
<label class="fold"><input type="checkbox" checked> {escape(say("Layers of a stack together"))}</label></div>
<div class="moment"><div class="kinds scroll" tabindex="0"></div><div class="alive scroll" tabindex="0"></div></div>
<h3>{escape(say("By module at this moment: widths are bytes"))}</h3>
<p class="aside noprint">{escape(say(_ICICLE))}</p>
<div class="icicle"></div>"""


def segments_place() -> str:
    return f"""<p class="summary"></p>
<p class="aside">{escape(say(_SEGMENTS))}</p>
<div class="chart"></div>"""


def lanes_place() -> str:
    buttons = "".join(
        f'<button class="{name}" type="button">{text}</button>'
        for name, text in (
            ("closer", say("Closer")),
            ("wider", say("Wider")),
            ("earlier", say("Earlier")),
            ("later", say("Later")),
        )
    )
    return f'<div class="row noprint">{buttons}</div><div class="chart"></div>'


def _line(line: Line) -> str:
    tone = f' class="{line.tone}"' if line.tone else ""
    return f"<p{tone}>{escape(line.text)}</p>"


def _grid(grid: Grid) -> str:
    rows = [*grid.rows, *([grid.total] if grid.total is not None else [])]
    made = [[_indented(cell) for cell in row] for row in rows]
    return table(grid.headings, made, grid.text_columns)


def _indented(text: str) -> str:
    indent = len(text) - len(text.lstrip(" "))
    return "&emsp;" * (indent // 2) + escape(text.strip())
