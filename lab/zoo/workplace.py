"""The folder in which one script runs: a copy of its repository, what was generated for it, and its environment."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from lab.zoo.manifest import PATCHES, STAND_INS, Repository, Script
from lab.zoo.recipes import generate

SOURCE = Path(__file__).parents[2] / "src"
LARGEST_FILE = 1 << 20
ADDRESS = "https://github.com/{name}.git"


@dataclass(frozen=True)
class Workplace:
    """Ready to run: `script` with `arguments`, from `folder`, in `environment`."""

    script: Path
    arguments: list[str]
    folder: Path
    environment: dict[str, str]


WORK = "work"
"""The folder below the cache in which scripts run, each in its own."""


def cache_folder() -> Path:
    """Where scripts and data are kept, outside the repository."""
    return Path(os.environ.get("VRAMCAST_ZOO") or Path.home() / ".cache" / "vramcast-zoo").resolve()


def checkout(repository: Repository) -> Path:
    """The repository's files at its commit, without history; fetched where they are not here yet."""
    folder = cache_folder() / "checkouts" / repository.folder_name
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    for path, content in _files(git_folder(repository), repository):
        target = partial / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    _put_in_place(partial, folder)
    return folder


def _put_in_place(partial: Path, folder: Path) -> None:
    try:
        partial.rename(folder)
    except OSError:  # another process was quicker
        shutil.rmtree(partial)


def _files(git_folder: Path, repository: Repository) -> Iterator[tuple[str, bytes]]:
    """Path and content of each file of the commit. Files above a size are pictures, notebooks and data: no script of
    the zoo needs them, and a mirror may have left them out. Links lead to folders of their authors' machines."""
    git = ["git", "--git-dir", str(git_folder)]
    listing = subprocess.run(
        [*git, "ls-tree", "-r", "-z", repository.commit, "--", *repository.only], check=True, stdout=subprocess.PIPE
    ).stdout.decode()
    entries = [line.split("\t", 1) for line in listing.split("\0") if line]
    blobs = [(header.split()[2], path) for header, path in entries if header.startswith("100")]
    asked = "".join(f"{blob}\n" for blob, _ in blobs).encode()
    answer = io.BytesIO(
        subprocess.run([*git, "cat-file", "--batch"], check=True, input=asked, stdout=subprocess.PIPE).stdout
    )
    for _, path in blobs:
        header = answer.readline().split()
        if header[-1] == b"missing":
            continue
        content = answer.read(int(header[2]))
        answer.read(1)
        if len(content) <= LARGEST_FILE:
            yield path, content


def missing_packages(script: Script) -> list[str]:
    """The packages that the script needs and that are not here."""
    folders = [*sys.path, str(cache_folder() / "packages")]
    return [name for name in script.packages if not any(distributions(name=name, path=folders))]


def prepare(script: Script) -> None:
    """Make the script's folder anew, so that nothing of an earlier run is left in it, and generate its data."""
    place = cache_folder() / WORK / script.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(checkout(script.repository), place / "root", symlinks=True)
    for name in ("data", "home"):
        (place / name).mkdir()
    for recipe in script.data:
        parameters = {k: _filled(v, place) if isinstance(v, str) else v for k, v in recipe.items()}
        generate(parameters.pop("recipe"), Path(parameters.pop("into", place / "data")), parameters)


def workplace(script: Script) -> Workplace:
    """How the script is run, once its folder is prepared."""
    place = cache_folder() / WORK / script.name
    path = place / "root" / script.path
    patches = [name for name in script.stand_ins if name in PATCHES]
    stand_ins = [str(STAND_INS / name) for name in script.stand_ins if name not in PATCHES]
    stand_ins += [str(STAND_INS / "patches")] if patches else []
    modules = [*stand_ins, *(_filled(entry, place) for entry in script.python_path), str(SOURCE), *_inherited_path()]
    environment = {
        **os.environ,
        **_usual_environment(place / "home"),
        "PYTHONPATH": os.pathsep.join([*modules, str(cache_folder() / "packages")]),
        "PATH": os.pathsep.join([*stand_ins, os.environ.get("PATH", "")]),
        "VRAMCAST_ZOO_PATCHES": ",".join(patches),
        **{key: _filled(value, place) for key, value in script.environment.items()},
    }
    folder = path.parent if script.folder is None else place / "root" / script.folder
    return Workplace(path, shlex.split(_filled(script.arguments, place)), folder, environment)


def _filled(text: str, place: Path) -> str:
    for name in ("root", "data", "home"):
        text = text.replace(f"{{{name}}}", str(place / name))
    return text


def _inherited_path() -> list[str]:
    return [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part) != SOURCE]


def _usual_environment(home: Path) -> dict[str, str]:
    """Nothing is downloaded, sent or shown, and what a script keeps in the home folder stays in its workplace."""
    return {
        "HOME": str(home),
        "HF_HOME": str(home / "huggingface"),
        "TORCH_HOME": str(home / "torch"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "WANDB_MODE": "disabled",
        "MPLBACKEND": "Agg",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
    }


def git_folder(repository: Repository) -> Path:
    """A git directory that holds the commit: in a folder of mirrors (VRAMCAST_ZOO_MIRROR), or fetched from GitHub."""
    own_name = repository.name.replace("/", "+")
    mirror = os.environ.get("VRAMCAST_ZOO_MIRROR")
    if mirror:
        base = Path(mirror) / own_name
        for candidate in (base / "repo" / ".git", base / "repo", base / ".git", base):
            if (candidate / "objects").is_dir():
                return candidate
    fetched = cache_folder() / "fetched" / f"{own_name}@{repository.commit[:12]}"
    if not fetched.is_dir():
        partial = fetched.with_name(f"{fetched.name}.{os.getpid()}")
        address = ADDRESS.format(name=repository.name)
        subprocess.run(["git", "init", "-q", "--bare", str(partial)], check=True)
        fetch = ["git", "--git-dir", str(partial), "fetch", "-q", "--depth", "1", address, repository.commit]
        subprocess.run(fetch, check=True)
        _put_in_place(partial, fetched)
    return fetched
