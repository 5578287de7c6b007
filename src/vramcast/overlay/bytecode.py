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
    """`disk`: a path under which this process and its forks reach the real files.

    Bytecode is looked for there, too: once an overlay was asked for a `__pycache__` that is not there, it goes on
    saying so after the folder was made below it, though it lists it.
    """
    folders = _installed()
    read, write = SourceFileLoader.get_data, SourceFileLoader.set_data

    @functools.cache
    def folder_on_disk(folder: str) -> str | None:
        place = os.path.join(os.path.realpath(folder), "")
        return disk + place if place.startswith(folders) else None

    def on_disk(bytecode: str) -> str | None:
        folder, name = os.path.split(bytecode)
        real = folder_on_disk(os.path.dirname(folder))
        if real is None or not _source_is_as_on(real, bytecode):
            return None
        return os.path.join(real, os.path.basename(folder), name)

    @functools.wraps(read)
    def get_data(self: SourceFileLoader, path: str) -> bytes:
        place = on_disk(path) if path.endswith(".pyc") else None
        return read(self, place or path)

    @functools.wraps(write)
    def set_data(self: SourceFileLoader, path: str, data: Any, **mode: int) -> None:
        write(self, on_disk(path) or path, data, **mode)

    SourceFileLoader.get_data = get_data  # type: ignore[method-assign,assignment]
    SourceFileLoader.set_data = set_data  # type: ignore[method-assign]


def _installed() -> tuple[str, ...]:
    """Folders of packages that were installed, vramcast's own among them."""
    paths = sysconfig.get_paths()
    folders = [*site.getsitepackages(), site.getusersitepackages(), paths["stdlib"], paths["platstdlib"]]
    folders.append(str(Path(__file__).parents[1]))
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)


def _source_is_as_on(folder: str, bytecode: str) -> bool:
    """Whether the program did not change the source, which is in `folder` on the disk: by what Python compares, too."""
    try:
        source = importlib.util.source_from_cache(bytecode)
        seen, real = os.stat(source), os.stat(os.path.join(folder, os.path.basename(source)))
    except (ValueError, OSError):
        return False
    return (seen.st_mtime_ns, seen.st_size) == (real.st_mtime_ns, real.st_size)
