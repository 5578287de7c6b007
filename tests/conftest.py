"""Fixtures shared by all tests."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["LC_ALL"] = "C.UTF-8"  # results are shown in the locale's language
os.environ.setdefault("VRAMCAST_CHECK", "1")  # after every op: is what it leaves booked at the size it has?

GOLDEN = Path(__file__).with_name("golden")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite-golden",
        action="store_true",
        help="write the outputs of this run to tests/golden instead of comparing with them",
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: compare with tests/golden/name.txt, or write it with --overwrite-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--overwrite-golden"):
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"no golden file {path.name}; make it with --overwrite-golden and look at it"
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), "golden", "now", lineterm="")
            pytest.fail("\n".join(["the output has changed (--overwrite-golden accepts it):", *diff]))

    return check
