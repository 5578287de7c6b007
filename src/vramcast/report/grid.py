"""How a table looks in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.table import Table

from vramcast.base.language import sentence
from vramcast.report.names import cell

_GAP = 2
_LEAST_LABEL = 16


def table(*headings: str, text_columns: int = 1) -> Table:
    """No lines but one under the heading, so that it reads the same in a terminal, a file and a log. Words stay whole:
    figures are never wrapped, text is between words."""
    table = _SpokenTable(box=None, pad_edge=False, show_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for i, heading in enumerate(headings):
        is_text = i < text_columns or heading in ("mostly", "source")
        longest_word = max((len(word) for word in heading.split()), default=0)
        heading = sentence(heading)
        table.add_column(
            heading,
            justify="left" if is_text else "right",
            overflow="ellipsis",
            no_wrap=not is_text,
            min_width=longest_word,
        )
    return table


class _SpokenTable(Table):
    """Its cells are in the language in force."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(cell(one) if isinstance(one, str) else one for one in cells), **options)


def plain_rows(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    text_columns: int = 1,
    drop: Sequence[str] = (),
) -> list[str]:
    """One line a row, the first being the headings. What is named in `drop` is left out first where there is no room;
    then the first column is shortened in its middle."""
    kept = list(range(len(headings)))
    dropped = [i for name in drop for i, heading in enumerate(headings) if heading == name]
    while True:
        widths = {i: max(cell_len(line[i]) for line in (headings, *rows)) for i in kept}
        room = width - sum(widths[i] + _GAP for i in kept[1:])
        if room >= min(widths[kept[0]], _LEAST_LABEL) or not dropped:
            break
        kept.remove(dropped.pop(0))
    widths[kept[0]] = max(1, min(widths[kept[0]], room))
    return [_row(line, kept, widths, text_columns) for line in (headings, *rows)]


def _row(cells: Sequence[str], kept: Sequence[int], widths: dict[int, int], text_columns: int) -> str:
    parts = []
    for i in kept:
        text = shortened(cells[i], widths[i])
        pad = " " * (widths[i] - cell_len(text))
        parts.append(text + pad if i < text_columns else pad + text)
    return (" " * _GAP).join(parts).rstrip()


def padded(text: str, width: int) -> str:
    """With blanks up to this many columns; Chinese characters take two."""
    return text + " " * (width - cell_len(text))


def shortened(text: str, width: int) -> str:
    """The middle of a long name is left out: its beginning and its end say most."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - end)}…{set_cell_size(text[::-1], end)[::-1]}"


def shortened_apart(texts: Sequence[str], width: int) -> list[str]:
    """Each at most this wide; where two would read the same, the modules that all long ones lie in are left out, or
    whatever comes before their endings."""
    shown = [shortened(text, width) for text in texts]
    if len(set(shown)) == len(set(texts)):
        return shown
    long = [text.split(".")[:-1] for text in texts if cell_len(text) > width]
    shared = "".join(
        f"{parts[0]}." for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*long, strict=False))
    )
    shown = [shortened(text if cell_len(text) <= width else f"…{text.removeprefix(shared)}", width) for text in texts]
    if len(set(shown)) == len(set(texts)):
        return shown
    return [
        _ending_of(text, width) if shown.count(label) > 1 and label != text else label
        for text, label in zip(texts, shown, strict=True)
    ]


def _ending_of(text: str, width: int) -> str:
    """From the beginning of a name in it, where more than one fits."""
    end = set_cell_size(text[::-1], width - 1)[::-1]
    after = end.partition(".")[2]
    return f"…{after if '.' in after else end}"
