"""Lines of a given width. Words stay whole; Chinese may be broken anywhere, and each of its characters takes two
columns."""

from __future__ import annotations

import re
import textwrap

from rich.cells import cell_len

_MORE = " …"
_WIDE = r"\u2e80-\u9fff\uff00-\uffef"
_CLOSING = r"\u3001-\u303f\uff01-\uff0f\uff1a-\uff1f"
# A wide character stands alone, with the punctuation after it; anything else goes on to the next blank.
_PIECE = re.compile(rf"\s+|[{_WIDE}][{_CLOSING}]*|[^\s{_WIDE}]+")


def wrap(text: str, width: int, most: int, indent: str = "") -> list[str]:
    """At most `most` lines; what does not fit ends in an ellipsis. Lines after the first begin with `indent`."""
    if cell_len(text) == len(text):
        return textwrap.wrap(
            text, width, subsequent_indent=indent, max_lines=most, placeholder=_MORE, break_on_hyphens=False
        )
    lines = [""]
    for piece in _PIECE.findall(text):
        if cell_len(lines[-1] + piece) <= width:
            lines[-1] += piece
            continue
        rest = indent + piece.lstrip()
        while cell_len(rest) > width:  # a word that is longer than a line
            lines.append(rest[:width])
            rest = indent + rest[width:]
        lines.append(rest)
    lines = [line.rstrip() for line in lines if line.strip()]
    if len(lines) <= most:
        return lines
    last = _PIECE.findall(lines[most - 1])
    while len(last) > 1 and cell_len("".join(last).rstrip() + _MORE) > width:
        last.pop()
    return [*lines[: most - 1], "".join(last).rstrip() + _MORE]
