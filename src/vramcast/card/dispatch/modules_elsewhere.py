"""A module that was not found although it lies near the script: in the folder above, in its `src`, or behind a package
that is installed under the same name."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_LEVELS = 4
"""Folders above the script, and above the working directory, in which a module is looked for."""


def remedy(error: BaseException, path: str) -> str:
    """What to do where Python does not look for a module that is there; nothing for other errors.

    `path`: the script.
    """
    if path and (lacking := _lacking_name(error)):
        return _behind_installed(*lacking, Path(path).absolute())
    if not isinstance(error, ModuleNotFoundError) or not error.name or not path:
        return ""
    top = error.name.partition(".")[0]
    script = Path(path).absolute()
    for folder in _near(script):
        if not _holds(folder, top):
            continue
        if folder in (script.parent, *map(Path, filter(None, sys.path))):
            return _hidden(folder / top) or _lacking(folder / top, error.name)
        command = f"PYTHONPATH={os.path.relpath(folder)} vramcast run ..."
        text = (
            f"\n{top} is in {folder}, which is not on the script's import path; the import would fail on a card too. "
            f"`{command}` puts it there."
        )
        if module := _name_as_module(script, folder):
            text += f" So does `vramcast run -m {module} ...`."
        return text
    return ""


def _hidden(folder: Path) -> str:
    """Python looks there, and has found another before: a folder without __init__.py is the last that it takes."""
    found = getattr(sys.modules.get(folder.name), "__file__", None)
    if found is None or Path(found).is_relative_to(folder):
        return ""
    return (
        f"\n{folder.name} is the installed package in {os.path.dirname(found)}, with a card too: it hides {folder}, "
        "which has no __init__.py. Make one, or run the script where that package is not installed."
    )


_NOT_IMPORTED = re.compile(r"cannot import name '(\w+)'")


def _lacking_name(error: BaseException) -> tuple[str, str] | None:
    """A module that was imported, and what the script asked of it in vain."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__, error.name or ""
    if isinstance(error, ImportError) and error.name and (name := _NOT_IMPORTED.match(str(error))):
        return error.name, name[1]
    return None


def _behind_installed(module: str, name: str, script: Path) -> str:
    """An installed package of the same name came first: `sys.path.append("core")` puts core/datasets.py behind it."""
    found = getattr(sys.modules.get(module), "__file__", None)
    if found is None or not any(
        Path(found).is_relative_to(sysconfig.get_path(each)) for each in ("purelib", "platlib")
    ):
        return ""
    for folder in _beside(script):
        if not _defines(folder, module, name):
            continue
        command = f"PYTHONPATH={os.path.relpath(folder)} vramcast run ..."
        return (
            f"\n{module} is the installed package in {os.path.dirname(found)}, with a card too: it hides the module of "
            f"that name in {folder}. `{command}` puts that first; or run the script where the package is not installed."
        )
    return ""


def _beside(script: Path) -> Iterator[Path]:
    """The script's folder, the working directory, and what lies in them and is no package itself."""
    for start in dict.fromkeys((script.parent, Path.cwd())):
        yield start
        try:
            inside = sorted(each for each in start.iterdir() if each.is_dir())
        except OSError:
            continue
        yield from (each for each in inside if not (each / "__init__.py").exists())


def _defines(folder: Path, module: str, name: str) -> bool:
    """Whether the folder has a module of that name in which the name begins a line, or is imported."""
    wanted = re.compile(rf"^(?:(?:async )?def |class |(?:from|import) .*\b)?{re.escape(name)}\b", re.MULTILINE)
    for file in (folder / f"{module}.py", folder / module / "__init__.py"):
        try:
            return wanted.search(file.read_text(encoding="utf-8", errors="replace")) is not None
        except OSError:
            continue
    return False


def _lacking(package: Path, name: str) -> str:
    """Python looks there, and the package is the one that was meant: a file of it is missing."""
    inside = name.partition(".")[2]
    if not inside or not package.is_dir():
        return ""
    return (
        f"\n{package} has no module {inside}, so that the import would fail on a card too: get the file (it may "
        "have to be generated, compiled or downloaded, as the README says), or leave the import out."
    )


def _name_as_module(script: Path, folder: Path) -> str:
    """What `python -m` would start, in the working directory."""
    if folder != Path.cwd() or not script.is_relative_to(folder):
        return ""
    parts = script.with_suffix("").relative_to(folder).parts
    return ".".join(parts) if len(parts) > 1 and all(part.isidentifier() for part in parts) else ""


def _near(script: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for start in (Path.cwd(), script.parent):
        for folder in [start, *start.parents][:_LEVELS]:
            for place in (folder, folder / "src"):
                if place not in seen:
                    seen.add(place)
                    yield place


def _holds(folder: Path, name: str) -> bool:
    """Whether the folder has a module or package of that name."""
    if (folder / f"{name}.py").is_file():
        return True
    if (folder / name / "setup.py").is_file() or (folder / name / "pyproject.toml").is_file():
        return False  # a project that was downloaded, with the package inside
    try:
        return any(each.suffix == ".py" for each in (folder / name).iterdir()) or (
            any((each / "__init__.py").is_file() for each in (folder / name).iterdir())
        )
    except OSError:
        return False
