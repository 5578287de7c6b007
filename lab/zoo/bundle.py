"""Everything that a GPU machine without a network needs to measure the zoo, in one small folder.

The scripts travel without their histories; data is generated there. Packages travel without tests and headers, and are
laid out only where the machine does not have them.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from lab.zoo.manifest import Script
from lab.zoo.workplace import cache_folder, checkout

FOLDER = Path(__file__).parents[2] / ".carry" / "zoo"
_SCRIPTS = "checkouts.tar.xz"
_PACKAGES = "packages.tar.xz"
_SCRIPT_ENDINGS = {".py", ".toml", ".yaml", ".yml", ".json", ".cfg", ".txt", ".csv", ".gin", ".ini", ".jinja"}
_LARGEST_TEXT = 1_000_000
"""A tokenizer, say."""
_NEEDLESS_ENDINGS = {".h", ".hpp", ".pxd", ".pyx", ".c", ".cc", ".map", ".zip", ".pyi", ".html", ".js"}
_NEEDLESS_FOLDERS = {"tests", "include", "src"}
_NEEDLESS_NAMES = (
    "*flight*",
    "*substrait*",
    "*gandiva*",
    "*_s3*",
    "libarrow_python*.so",
    "libarrow_python*.*.*.*",
    "*.ttf",
    "*.afm",
)
_NEEDED_NAMES = ("DejaVuSans.ttf",)


def make(scripts: Iterable[Script], wheels: Path | None, folder: Path = FOLDER) -> None:
    """Write the bundle of these scripts; `wheels` is a folder of packages for that machine's Python."""
    folder.mkdir(parents=True, exist_ok=True)
    repositories = {script.repository.name: script.repository for script in scripts}
    with tarfile.open(folder / _SCRIPTS, "w:xz") as tar:
        for repository in repositories.values():
            base = checkout(repository)
            for path in sorted(base.rglob("*")):
                if path.is_file() and path.suffix in _SCRIPT_ENDINGS and path.stat().st_size <= _LARGEST_TEXT:
                    tar.add(path, arcname=str(Path(repository.folder_name) / path.relative_to(base)), recursive=False)
    if wheels is not None:
        with tarfile.open(folder / _PACKAGES, "w:xz") as tar:
            for wheel in sorted(wheels.glob("*.whl")):
                _add_wheel(tar, wheel)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {len(repositories)} repositories, {size / 2**20:.1f} MiB")


def _add_wheel(tar: tarfile.TarFile, path: Path) -> None:
    """The wheel's files below a folder of its name."""
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            inside = PurePosixPath(name)
            needless = (
                inside.suffix in _NEEDLESS_ENDINGS
                or not _NEEDLESS_FOLDERS.isdisjoint(inside.parts[1:-1])
                or any(inside.match(pattern) for pattern in _NEEDLESS_NAMES)
            ) and inside.name not in _NEEDED_NAMES
            if not needless and not name.endswith("/"):
                content = wheel.read(name)
                entry = tarfile.TarInfo(f"{path.stem}/{name}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def unpack(folder: Path = FOLDER) -> None:
    """Lay the scripts out in the cache, and beside them the packages that cannot be imported."""
    target = cache_folder() / "checkouts"
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / _SCRIPTS) as tar:
        tar.extractall(target, filter="data")
    if not (folder / _PACKAGES).is_file():
        return
    with tarfile.open(folder / _PACKAGES) as tar:
        by_wheel: dict[str, list[tarfile.TarInfo]] = {}
        for entry in tar.getmembers():
            by_wheel.setdefault(entry.name.split("/", 1)[0], []).append(entry)
        for wheel, entries in by_wheel.items():
            if _is_there(entry.name.split("/")[1] for entry in entries):
                continue
            print(f"unpacking {wheel}")
            for entry in entries:
                entry.name = entry.name.split("/", 1)[1]
                tar.extract(entry, packages(), filter="data")


def packages() -> Path:
    """The folder of packages that came with the bundle; scripts find it after everything else."""
    return cache_folder() / "packages"


def _is_there(tops: Iterable[str]) -> bool:
    """Whether the machine has every module of these names at the top of a wheel already."""
    modules = {top.removesuffix(".py") for top in tops if top.removesuffix(".py").isidentifier()}
    own = str(packages())
    sys.path[:] = [entry for entry in sys.path if entry != own]
    return bool(modules) and all(importlib.util.find_spec(module) is not None for module in modules)
