"""Every path that a page names is there, and every link leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "vramcast"
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "lab/**/*.md") for path in ROOT.glob(pattern)
)
GENERATED = {"build", "dist"}
"""Folders that are made by a command and are not in the repository."""


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _text(page: Path) -> str:
    """Without code blocks, which show the user's files."""
    return re.sub(r"(?ms)^\s*```.*?^\s*```", "", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def _paths(page: Path) -> Iterator[str]:
    """Words in backticks that begin with a folder of this repository or of the package. NAME stands for any."""
    for word in re.findall(r"`([a-z][\w./*-]*/[\w./*-]*)`", _text(page)):
        first = word.split("/")[0]
        is_ours = (ROOT / first).is_dir() or (PACKAGE / first).is_dir()
        if is_ours and first not in GENERATED and "NAME" not in word:
            yield word


def _exists(path: str) -> bool:
    return any(next(folder.glob(path.rstrip("/")), None) is not None for folder in (ROOT, PACKAGE))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in _anchors(place)):
            wrong.append(target)
    assert not wrong, f"{_name(page)}: {wrong}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_paths_of_the_code_are_there(page: Path) -> None:
    wrong = [path for path in _paths(page) if not _exists(path)]
    assert not wrong, f"{_name(page)}: {wrong}"


def test_pages_that_the_code_names_are_there() -> None:
    sources = [ROOT / "Makefile", *(path for folder in ("src", "lab") for path in _code(folder))]
    named = {
        (found, source) for source in sources for found in re.findall(r"docs/[\w/-]+\.md", source.read_text("utf-8"))
    }
    assert named
    wrong = sorted(f"{source.relative_to(ROOT)}: {found}" for found, source in named if not (ROOT / found).is_file())
    assert not wrong


def _code(folder: str) -> Iterator[Path]:
    return (ROOT / folder).rglob("*.py")


def test_users_pages_do_not_hold_the_lab() -> None:
    """What a user reads fits on a few screens; long tables belong into docs/lab. Fields and formats are references."""
    references = {"jobs.md", "json.md", "run.md"}
    long = {p.name for p in (ROOT / "docs").glob("*.md") if len(p.read_text("utf-8").split()) > 3000}
    assert long <= references


def test_the_check_finds_what_is_missing() -> None:
    assert _exists("trace/schema.py") and _exists("lab/data/predictions-*.jsonl") and _exists("features/advise/")
    assert not _exists("trace/no_such_module.py")


def test_names_of_the_code_are_in_the_code() -> None:
    """Names of constants and classes that CONTRIBUTING gives, such as `READERS`."""
    text = _text(ROOT / "CONTRIBUTING.md")
    named = {word for word in re.findall(r"`(_?[A-Z][A-Za-z_]*[a-zA-Z])`", text) if word not in {"NAME"}}
    assert {"READERS", "KNOBS", "_ARCHITECTURES"} <= named
    code = "\n".join(path.read_text("utf-8") for path in _code("src"))
    wrong = sorted(word for word in named if not re.search(rf"^\s*(class )?{word}\b", code, re.MULTILINE))
    assert not wrong
