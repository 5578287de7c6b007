"""The little Markdown that the generated page needs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

NO_BREAK = "\N{NO-BREAK SPACE}"
WIDTH = 118


def paragraph(text: str, hang: str = "") -> list[str]:
    """Wrapped lines; `hang` indents all but the first. A number and its percent sign stay together."""
    joined = " ".join(text.split()).replace(" %", NO_BREAK + "%")
    lines = textwrap.wrap(joined, WIDTH, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def table(header: list[str], rows: Iterable[list[str]], text_columns: frozenset[int] = frozenset({0})) -> list[str]:
    """The columns named in `text_columns` are aligned to the left, figures to the right."""
    rule = "|".join("---" if i in text_columns else "---:" for i in range(len(header)))
    lines = ["| " + " | ".join(header) + " |", f"|{rule}|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def rewritten(page: str, lines: Sequence[str], begin: str, end: str) -> str:
    """The page with `lines`, which bring their markers, in place of the section that it has, or at its end."""
    before, marker, after = page.partition(begin)
    text = "\n".join(lines)
    return before + text + after.partition(end)[2] if marker else f"{page.rstrip()}\n\n{text}\n"
