"""Bytecode of installed packages reaches the real disk, as after any run of Python. Without it each import takes about
three times as long, and uv installs packages without it. Bytecode of the user's own files goes to the overlay."""

from __future__ import annotations

import functools
import importlib.util
import os
import site
import sysconfig
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any


def keep_bytecode(disk: str) -> None:
    """`disk`: a path under which this process and its forks reach the real files."""
    folders = _installed()
    original = SourceFileLoader.set_data

    @functools.wraps(original)
    def set_data(self: SourceFileLoader, path: str, data: Any, **mode: int) -> None:
        place = os.path.realpath(path)
        if place.startswith(folders) and _source_is_as_on(disk, place):
            path = disk + place
        original(self, path, data, **mode)

    SourceFileLoader.set_data = set_data  # type: ignore[method-assign]


def _installed() -> tuple[str, ...]:
    """Folders of packages that were installed, vramcast's own among them."""
    paths = sysconfig.get_paths()
    folders = [*site.getsitepackages(), site.getusersitepackages(), paths["stdlib"], paths["platstdlib"]]
    folders.append(str(Path(__file__).parents[1]))
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)


def _source_is_as_on(disk: str, bytecode: str) -> bool:
    """Whether the program did not change the source: by what Python compares, too."""
    try:
        source = importlib.util.source_from_cache(bytecode)
        seen, real = os.stat(source), os.stat(disk + source)
    except (ValueError, OSError):
        return False
    return (seen.st_mtime_ns, seen.st_size) == (real.st_mtime_ns, real.st_size)
