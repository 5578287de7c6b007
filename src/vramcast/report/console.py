"""Where text goes: colours for a terminal, plain lines without padding for a file or a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TextIO

from rich.console import Console


def emit(render: Callable[[Console], None], file: TextIO, width: int | None = None) -> None:
    """Call `render` with a console that suits `file`."""
    if file.isatty():
        render(Console(file=file, width=width, highlight=False))
        return
    buffer = io.StringIO()
    render(Console(file=buffer, width=width, highlight=False, no_color=True, force_terminal=False))
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    text = "\n".join(lines) + "\n"
    encoding = file.encoding or "utf-8"
    file.write(text.encode(encoding, errors="replace").decode(encoding))
