"""What a script needs that is not there: data that it reads, or the folder that it writes into."""

from __future__ import annotations

import linecache
import os
import re

MADE_UP_DATA = (
    "\nWhere that is data, made-up data of the same form and sizes does as well for a prediction: memory follows from "
    "shapes (for images: torchvision.datasets.FakeData)."
)

_NO_FILE = re.compile(r"\[Errno 2\][^']*'([^']+)'")

_NO_PARENT = re.compile(r"^Parent directory (.+) does not exist\.$")
"""What torch.save says."""

_WRITES = re.compile(r"\bmk(?:dir|nod|temp)\(|\bsymlink\(|\bopen\([^)]*,\s*(?:mode\s*=\s*)?['\"][wax]")

_WRITERS = frozenset({"mkdir", "touch", "write_text", "write_bytes", "save", "savez", "savetxt", "savefig", "to_csv"})
"""Functions of libraries that write a file."""


def missing(error: BaseException) -> str:
    """What to do; empty where no file is missing."""
    if parent := _NO_PARENT.match(str(error)):
        return _make(parent[1])
    found = _NO_FILE.search(str(error))
    if found is None or not isinstance(error, FileNotFoundError):
        return ""
    folder = os.path.dirname(found[1].rstrip("/"))
    if folder and not os.path.isdir(folder) and _was_writing(error):
        return _make(folder)
    return f"\nThe script needs {found[1]}, with a card too, and it is not here." + MADE_UP_DATA


def _make(folder: str) -> str:
    return f"\nThe script writes into {folder}, which is not here and which it does not make: `mkdir -p {folder}` does."


def _was_writing(error: BaseException) -> bool:
    trace, line = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_name in _WRITERS:
            return True
        line = linecache.getline(code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return bool(_WRITES.search(line))
