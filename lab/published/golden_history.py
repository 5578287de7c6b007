"""When Megatron-LM's CI last changed each of its memory figures, and the container that commit names.

`git log` of a golden file misleads: commits that only touch its times or losses are newer than the memory in it.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

TEST_CASES = "tests/functional_tests/test_cases"
NOT_A_BLOB = "0" * 40


@dataclass(frozen=True)
class Recorded:
    """The commit that brought the figure a golden file has now."""

    commit: str
    date: str
    bytes: float | None
    container: str
    """The NVIDIA container that commit's CI ran in; empty where the commit names none."""


def git(repository: Path, *words: str, stdin: bytes | None = None) -> bytes:
    command = ["git", "-C", str(repository), *words]
    return subprocess.run(command, capture_output=True, input=stdin, check=False).stdout


def history(repository: Path, paths: list[str]) -> dict[str, Recorded]:
    """Of each golden file the commit since which its memory has been the same."""
    changes = _changes(repository)
    blobs = {blob for path in paths for _, _, blob in changes[path] if blob != NOT_A_BLOB}
    peaks = {name: _peak(text) for name, text in _read(repository, blobs).items()}
    found = {}
    for path in paths:
        recorded = None
        for commit, date, blob in changes[path]:
            if recorded is not None and peaks.get(blob) != recorded[2]:
                break
            recorded = (commit, date, peaks.get(blob))
        if recorded:
            version = "lts" if "golden_values_lts" in path else "dev"
            container = git(repository, "show", f"{recorded[0]}:docker/.ngc_version.{version}").decode().strip()
            found[path] = Recorded(*recorded, container)
    return found


def _changes(repository: Path) -> dict[str, list[tuple[str, str, str]]]:
    """(commit, date, blob) of every change of a file below the test cases, newest first."""
    words = (
        "log",
        "--first-parent",
        "-m",
        "--format=@%H %cs",
        "--raw",
        "--no-abbrev",
        "--no-renames",
        "--",
        TEST_CASES,
    )
    found: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    commit = date = ""
    for line in git(repository, *words).decode().splitlines():
        if line.startswith("@"):
            commit, date = line[1:].split()
        elif line.startswith(":"):
            about, _, path = line.partition("\t")
            found[path].append((commit, date, about.split()[3]))
    return found


def _read(repository: Path, blobs: set[str]) -> dict[str, bytes]:
    text = git(repository, "cat-file", "--batch", stdin="\n".join(sorted(blobs)).encode())
    found, at = {}, 0
    while at < len(text):
        end = text.index(b"\n", at)
        name, kind, *size = text[at:end].decode().split()
        at = end + 1
        if kind == "blob":
            found[name] = text[at : at + int(size[0])]
            at += int(size[0]) + 1
    return found


def _peak(text: bytes) -> float | None:
    try:
        series = json.loads(text).get("mem-max-allocated-bytes")
    except ValueError:
        return None
    values = series.get("values", []) if isinstance(series, dict) else series or []
    numbers = [
        each for each in (values.values() if isinstance(values, dict) else values) if isinstance(each, int | float)
    ]
    return max(numbers, default=None)
