"""docs/layout.md tells how `run` and `advise` pass through the modules; the imports must agree with it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vramcast"
LAYOUT = ROOT / "docs" / "layout.md"
VERBS = ("run", "advise")


class Hop(NamedTuple):
    source: str
    target: str


def _section(verb: str) -> str:
    text = LAYOUT.read_text(encoding="utf-8")
    return text.split(f"## The walk of `{verb}`\n", 1)[1].split("\n## ", 1)[0]


def _hops(verb: str) -> list[Hop]:
    return [Hop(*found) for found in re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", _section(verb), re.MULTILINE)]


@cache
def _imported(path: str) -> frozenset[str]:
    """Modules that this one imports, at its top or inside a function, as paths below the package. A name that a package
    passes on leads to the module that it comes from."""
    found: set[str] = set()
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "vramcast":
            for alias in node.names:
                found |= _sources(node.module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found |= _file_of(alias.name)
    return frozenset(found)


def _sources(module: str, name: str) -> set[str]:
    """Where `from module import name` leads."""
    found = _file_of(module) | _file_of(f"{module}.{name}")
    for path in _file_of(module):
        if path.endswith("__init__.py"):
            tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
            passed_on = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module)
            for node in passed_on:
                if any((alias.asname or alias.name) == name for alias in node.names):
                    found |= _file_of(str(node.module))
    return found


def _file_of(module: str) -> set[str]:
    """The path of a module of the package; nothing for other names."""
    first, *rest = module.split(".")
    if first != "vramcast":
        return set()
    for path in (Path(*rest, "__init__.py"), Path(*rest).with_suffix(".py") if rest else Path("__init__.py")):
        if (PACKAGE / path).is_file():
            return {path.as_posix()}
    return set()


@pytest.mark.parametrize("verb", VERBS)
def test_a_walk_begins_at_the_command_and_ends_with_the_report(verb: str) -> None:
    hops = _hops(verb)
    assert hops[0] == Hop("cli/main.py", f"cli/commands/{verb}.py")
    assert hops[-1].target.startswith("report/")
    assert len(hops) > 20


@pytest.mark.parametrize("verb", VERBS)
def test_a_walk_leaves_only_modules_that_it_has_reached(verb: str) -> None:
    reached = {"cli/main.py"}
    for hop in _hops(verb):
        reached.add(hop.target)
        assert hop.source in reached, f"nothing leads to {hop.source}"


@pytest.mark.parametrize(("verb", "hop"), [(verb, hop) for verb in VERBS for hop in _hops(verb)])
def test_each_hop_follows_an_import(verb: str, hop: Hop) -> None:
    for path in hop:
        assert (PACKAGE / path).is_file(), f"docs/layout.md names {path}, which does not exist"
    assert hop.target in _imported(hop.source), f"{hop.source} does not import {hop.target}"


@pytest.mark.parametrize("verb", VERBS)
def test_each_folder_is_entered_from_one_other_but_for_those_named(verb: str) -> None:
    entered: dict[str, set[str]] = {}
    for source, target in _hops(verb):
        origin, folder = source.split("/")[0], target.split("/")[0]
        if origin != folder:
            entered.setdefault(folder, set()).add(origin)
    several = {folder for folder, origins in entered.items() if len(origins) > 1}
    named = re.search(r"^Entered from more than one folder: (.*?)\.", _section(verb), re.MULTILINE)
    assert named is not None
    assert several == set(re.findall(r"`(\w+)/`", named[1]))


def test_an_import_is_followed_through_a_package() -> None:
    """The check itself: names that a package passes on, modules, imports inside a function, and what is not there."""
    assert "timing/step.py" in _imported("memory/prediction.py")
    assert "overlay/__init__.py" in _imported("cli/options.py")
    assert "report/terminal.py" in _imported("cli/options.py")
    assert "timing/queues.py" not in _imported("memory/prediction.py")
