"""Models of the Hugging Face Hub: found in the local cache of huggingface_hub, never fetched."""

from __future__ import annotations

import os
import re
from pathlib import Path

from vramcast.base.errors import UsageError
from vramcast.jobs.folders import CONFIG, PIPELINE

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST_REFERENCE = 64
_OF_FILES = (".yaml", ".yml", ".json", ".jsonc", ".toml", ".py", ".sh", ".txt", ".trace", ".ipynb", ".safetensors")


def is_hub_id(name: str) -> bool:
    """`owner/name`, and neither a path that is there nor one that looks like a file in a folder."""
    return bool(_HUB_ID.fullmatch(name)) and ".." not in name and not name.lower().endswith(_OF_FILES)


def cached_folder(name: str) -> Path | None:
    """The snapshot of a Hub id that has a config, the one of `main` first; None where there is none."""
    if not is_hub_id(name) or os.path.exists(name):
        return None
    folder = cache_folder() / f"models--{name.replace('/', '--')}"
    snapshots = folder / "snapshots"
    try:
        commits = sorted(path.name for path in snapshots.iterdir())
        with open(folder / "refs" / "main", encoding="utf-8") as file:
            commits.insert(0, file.read(_LONGEST_REFERENCE).strip())
    except (OSError, UnicodeDecodeError):
        commits = []
    for commit in commits:
        if _COMMIT.fullmatch(commit) and any((snapshots / commit / one).is_file() for one in (CONFIG, PIPELINE)):
            return snapshots / commit
    return None


def name_of(folder: Path) -> str:
    """What a model folder is called: a snapshot of the cache by its Hub id."""
    whole = folder.resolve()
    if whole.parent.name == "snapshots" and whole.parents[1].name.startswith("models--"):
        return whole.parents[1].name.removeprefix("models--").replace("--", "/", 1)
    return whole.name


def cache_folder() -> Path:
    """As huggingface_hub finds it."""
    said = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if said:
        return Path(said).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def folder_of(name: str, *, is_pipeline: bool = False) -> str:
    """The folder that a name stands for: a folder, or a Hub id that is in the cache. UsageError says what to do."""
    if os.path.isdir(name):
        return name
    found = cached_folder(name)
    if found is not None:
        return str(found)
    if is_hub_id(name):
        files = '--include "*.json"' if is_pipeline else CONFIG
        raise UsageError(
            f"{name} is not in the Hugging Face cache, and nothing is fetched: `hf download {name} {files}` brings "
            f"what is needed, without the weights; or name a folder with its {CONFIG} (--model FOLDER)"
        )
    raise UsageError(
        f"{name}: there is no such folder. Nothing is fetched: put the model's {CONFIG} into a folder and name that "
        "with --model FOLDER"
    )
