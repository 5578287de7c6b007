"""A tree of files, and what it is like: names, kinds, modes, contents."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def make_old(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"old {name}\n")


def fingerprint(top: Path) -> dict[str, str]:
    seen = {}
    for parent, folders, files in os.walk(top):
        for name in [*folders, *files]:
            path = Path(parent, name)
            info = path.lstat()
            said = f"{stat.filemode(info.st_mode)} {info.st_mtime_ns if path.is_file() else ''}"
            if path.is_symlink():
                said += f" -> {os.readlink(path)}"
            elif path.is_file():
                said += f" {hashlib.sha256(path.read_bytes()).hexdigest()}"
            seen[str(path.relative_to(top))] = said
    return seen
