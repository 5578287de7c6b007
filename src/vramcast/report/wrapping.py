"""Lines of a given width. Words stay whole; Chinese may be broken anywhere, and each of its characters takes two
columns."""

from __future__ import annotations

import re
import textwrap

from rich.cells import cell_len

from vramcast.report.grid import shortened

_MORE = " …"
_WORTH_FILLING = 24
_WIDE = r"\u2e80-\u9fff\uff00-\uffef"
_CLOSING = r"\u3001-\u303f\uff01-\uff0f\uff1a-\uff1f"
# A wide character stands alone, with the punctuation after it; anything else goes on to the next blank.
_PIECE = re.compile(rf"\s+|[{_WIDE}][{_CLOSING}]*|[^\s{_WIDE}]+")


def wrap(text: str, width: int, most: int, indent: str = "") -> list[str]:
    """At most `most` lines; what does not fit ends in an ellipsis. Lines after the first begin with `indent`."""
    if cell_len(text) == len(text):
        short = textwrap.wrap(
            text, width, subsequent_indent=indent, max_lines=most, placeholder=_MORE, break_on_hyphens=False
        )
        return [*short[:-1], _filled(short, text, width)] if short and short[-1].endswith(_MORE) else short
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


def _filled(lines: list[str], text: str, width: int) -> str:
    """The last line of a sentence that is cut."""
    kept = lines[-1].removesuffix(_MORE)
    shown, words = " ".join([*lines[:-1], kept]).split(), text.split()
    if shown != words[: len(shown)] or len(shown) == len(words):  # a word is broken
        return lines[-1]
    return ending(kept, words[len(shown)], width)


def ending(kept: str, word: str, width: int) -> str:
    """A line that is cut before `word`. Where that is long, as paths are, a part of it says more than nothing."""
    room = width - cell_len(kept) - len(_MORE) - 1
    return f"{kept} {shortened(word, room)}{_MORE}" if room >= _WORTH_FILLING else f"{kept}{_MORE}"
