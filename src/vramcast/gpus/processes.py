"""Processes of this machine as /proc shows them: name, owner, parents. Only looks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Described:
    name: str
    user: str | None
    """None: there is no such process to see from here (another container's, or it has ended)."""


def describe(pid: int) -> Described:
    folder = PROC / str(pid)
    try:
        uid = folder.stat().st_uid
    except OSError:
        return Described("", None)
    return Described(_name(folder), user_name(uid))


def _name(folder: Path) -> str:
    """The program as it was started; its short name where the command line may not be read."""
    try:
        first = (folder / "cmdline").read_bytes().split(b"\0", 1)[0].decode(errors="replace")
        return os.path.basename(first) or (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def user_name(uid: int) -> str:
    """The user's name, or the number of one that is not listed here."""
    try:
        import pwd
    except ImportError:  # not a POSIX system
        return str(uid)
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; tells it from a later one with the same number. None: it does
    not run."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def parents() -> dict[int, int]:
    """Every process that can be seen → its parent."""
    parent_of = {}
    for entry in os.scandir(PROC) if PROC.is_dir() else ():
        if entry.name.isdecimal():
            fields = _stat(int(entry.name))
            if fields is not None:
                parent_of[int(entry.name)] = int(fields[1])
    return parent_of


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; the second may hold spaces and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
