"""What Python did while a hostile file was read: writes, processes, the network, pickles, code from elsewhere.

The hook comes after the one of vramcast.sealing, so that it sees what was not refused.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vramcast.base.sealing import sealed

FORBIDDEN = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate", "os.chmod",
    "shutil.rmtree", "shutil.copyfile", "shutil.move", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
    "os.fork", "socket.connect", "socket.getaddrinfo", "socket.bind", "urllib.Request", "pickle.find_class",
    "builtins.input",
)  # fmt: skip
_REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_LIBRARIES = tuple(
    os.path.realpath(path)
    for path in (sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"], _REPOSITORY, *filter(None, sys.path))
)
_seen: list[str] | None = None
_installed = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = (
            any(letter in mode for letter in "wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR)
        )
        if writes and not isinstance(path, int) and str(path) != os.devnull and "__pycache__" not in str(path):
            _seen.append(f"open for writing: {path}")
    elif event == "exec":
        file = getattr(arguments[0], "co_filename", "")
        if not file.startswith("<") and not os.path.realpath(file).startswith(_LIBRARIES):
            _seen.append(f"ran {file}")
    elif event in FORBIDDEN and not _compiling():
        _seen.append(f"{event} {arguments!r:.200}")


def _compiling() -> bool:
    """A library's module is being imported, and compiled, for the first time."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


@contextmanager
def watching() -> Iterator[list[str]]:
    """What is in the list at the end was done."""
    global _seen, _installed
    with sealed():
        pass  # its hook first
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    _seen = done = []
    try:
        yield done
    finally:
        _seen = None
