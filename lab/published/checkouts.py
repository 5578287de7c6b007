"""Files of public repositories at one revision, taken from local mirrors."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

KINDS_OF_FILES = (".py", ".toml", ".yaml", ".yml", ".json", "VERSION.txt", "version.txt")


def work_folder() -> Path:
    """Where checkouts are kept between runs: `VRAMCAST_PUBLISHED_WORK`, or a folder in the user's cache."""
    return Path(os.environ.get("VRAMCAST_PUBLISHED_WORK", Path.home() / ".cache" / "vramcast-published"))


def mirror(repository: str) -> Path:
    """The git directory of `owner/name` below `VRAMCAST_ZOO_MIRROR`."""
    folder = Path(os.environ.get("VRAMCAST_ZOO_MIRROR", work_folder() / "mirror"))
    return folder / repository.replace("/", "+") / "repo"


def read(repository: str, revision: str, path: str) -> str:
    return _git(repository, "show", f"{revision}:{path}").decode()


def resolve(repository: str, name: str) -> str:
    """The commit of a revision; `release_v2.9` is a branch that a mirror may lack, so its last tag stands for it."""
    for tried in (name, name.replace("release_", "")):
        found = _git(repository, "rev-parse", "--verify", "--quiet", tried + "^{commit}", check=False).decode().strip()
        if found:
            return found
    raise LookupError(f"{repository} has no revision {name}")


def checkout(repository: str, revision: str) -> Path:
    """A folder with the repository's code and settings at this revision."""
    commit = resolve(repository, revision)
    folder = work_folder() / repository.replace("/", "+") / commit[:12]
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        for path, text in _files(repository, commit):
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_bytes(text)
        partial.rename(folder)
    return folder


def _files(repository: str, commit: str) -> Iterator[tuple[str, bytes]]:
    """Paths and contents; large files that a mirror lacks are left out."""
    listed = _git(repository, "ls-tree", "-r", commit).decode().splitlines()
    entries = [line.split(maxsplit=3) for line in listed]
    wanted = [(path, blob) for _, kind, blob, path in entries if kind == "blob" and path.endswith(KINDS_OF_FILES)]
    names = "\n".join(blob for _, blob in wanted).encode()
    contents = _git(repository, "cat-file", "--batch", stdin=names)
    at = 0
    for path, _ in wanted:
        end = contents.index(b"\n", at)
        words = contents[at:end].split()
        at = end + 1
        if words[1] == b"missing":
            continue
        size = int(words[2])
        yield path, contents[at : at + size]
        at += size + 1


def _git(repository: str, *words: str, check: bool = True, stdin: bytes | None = None) -> bytes:
    command = ["git", "-C", str(mirror(repository)), *words]
    return subprocess.run(command, capture_output=True, check=check, input=stdin).stdout
