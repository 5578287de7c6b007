"""Files of public repositories at one revision, taken from local mirrors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


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
    """A folder with the repository's files at this revision."""
    commit = resolve(repository, revision)
    folder = work_folder() / repository.replace("/", "+") / commit[:12]
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        archive = subprocess.Popen(
            ["git", "-C", str(mirror(repository)), "archive", commit], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        subprocess.run(["tar", "x", "-C", str(partial)], stdin=archive.stdout, check=True)
        archive.wait()
        partial.rename(folder)
    return folder


def _git(repository: str, *words: str, check: bool = True) -> bytes:
    command = ["git", "-C", str(mirror(repository)), *words]
    return subprocess.run(command, capture_output=True, check=check).stdout
