"""The code of a Jupyter notebook as one script: its code cells, one after the other.

Lines that only IPython understands are left out where a cell does not compile with them: `%matplotlib inline`,
`!pip install ...`, `value = !command`, and whole cells of another language (`%%bash`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from vramcast.base.errors import UsageError

ENDING = ".ipynb"

_KEPT = ("time", "timeit", "capture", "prun")
"""Magics of a cell whose other lines are Python."""

_IPYTHON_LINE = re.compile(r"(?P<indent>\s*)(?:[%!?].*|(?P<target>[\w, ]+?)\s*=\s*[%!].*|[\w.]+\?{1,2}\s*)")


def code_of(source: bytes, name: str) -> str:
    """The script. UsageError where `source` is no notebook, or one in another language."""
    try:
        document = json.loads(source)
        cells = document["cells"]
        language = document.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        texts = [_text(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{name}: not a notebook of Jupyter's (version 4): it has no list of cells") from None
    if language.lower() != "python":
        raise UsageError(f"{name}: a notebook in {language}, and vramcast runs Python")
    return "\n\n".join(map(_python, texts)) + "\n"


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _python(cell: str) -> str:
    """A cell without what only IPython understands; it has as many lines as before."""
    lines = cell.split("\n")
    first = lines[0].strip()
    if first.startswith("%%"):
        if first[2:].partition(" ")[0] not in _KEPT:
            return "\n".join(f"# {line}" for line in lines)
        lines[0] = f"# {lines[0]}"
    elif _compiles(cell):
        return cell
    return "\n".join(map(_python_line, lines))


def _python_line(line: str) -> str:
    match = _IPYTHON_LINE.fullmatch(line)
    if match is None:
        return line
    return f"{match['indent']}{match['target']} = []" if match["target"] else f"{match['indent']}pass"


def _compiles(cell: str) -> bool:
    try:
        compile(cell, "cell", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
