"""Where text goes: colours for a terminal, plain lines without padding for a file or a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from vramcast.base.language import sentence
from vramcast.base.plain_text import printable


class SafeConsole(Console):
    """Names and messages from files are shown as they are, escape codes in them as text. Lines are in the language in
    force."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*map(_spoken, objects), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_text = not segment.control
            yield Segment(printable(segment.text), segment.style) if is_text else segment


def _spoken(shown: Any) -> Any:
    if isinstance(shown, str):
        return sentence(shown)
    if isinstance(shown, Text) and not shown.spans:
        return Text(sentence(shown.plain), style=shown.style)
    if isinstance(shown, Padding):
        shown.renderable = _spoken(shown.renderable)
    return shown


def plain_text(render: Callable[[Console], None], width: int | None = None) -> str:
    """Without colours and without blanks at the ends of lines."""
    buffer = io.StringIO()
    render(SafeConsole(file=buffer, width=width, highlight=False, no_color=True, force_terminal=False))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def emit(render: Callable[[Console], None], file: TextIO, width: int | None = None) -> None:
    """Call `render` with a console that suits `file`."""
    if file.isatty():
        render(SafeConsole(file=file, width=width, highlight=False))
        return
    text = plain_text(render, width)
    encoding = file.encoding or "utf-8"
    file.write(text.encode(encoding, errors="replace").decode(encoding))
