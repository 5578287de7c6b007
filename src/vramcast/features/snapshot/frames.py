"""Call stacks in few words: the line of the user's code that allocates, and the way to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

from vramcast.features.snapshot.pickled import Entry, Stack

_LIBRARIES = ("/torch/", "/site-packages/", "/dist-packages/", "/lib/python", "<frozen")
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Place:
    line: str
    """ "train.py:42 forward", of the innermost frame that is no library's; else of the innermost."""
    op: str
    """The function that allocates, inside a library."""
    path: str
    """Frames from the outermost to the innermost, as names with dots between them."""


BEFORE_HISTORY = "before the recording"


def place(stack: Stack) -> Place:
    frames = [frame for frame in stack if _is_python(frame)] or list(stack)
    if not frames:
        return Place(BEFORE_HISTORY, "", BEFORE_HISTORY)
    own = [frame for frame in frames if not _in_library(str(frame.get("filename", "")))] or frames[:1]
    op = "" if own[0] is frames[0] else str(frames[0].get("name", ""))
    path = ".".join(_text(frame).replace(".", "·") for frame in reversed(own[:_DEEPEST]))
    return Place(_text(own[0]), op, path)


def _text(frame: Entry) -> str:
    line = frame.get("line", 0)
    file = PurePath(str(frame.get("filename", ""))).name
    return f"{file}:{line} {frame.get('name', '')}" if line else f"{file} {frame.get('name', '')}".strip()


def _is_python(frame: Entry) -> bool:
    name = str(frame.get("filename", ""))
    return name.endswith(".py") or name.startswith("<")


@cache
def _in_library(filename: str) -> bool:
    return any(part in filename for part in _LIBRARIES)
