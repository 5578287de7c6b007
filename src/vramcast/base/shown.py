"""Results that people look at: as text, as JSON, and in a notebook. How each looks is said in `report`, found on first
use."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


class Shown:
    __slots__ = ()

    def to_document(self) -> dict[str, Any]:
        """The document that the verb's --json prints."""
        document: dict[str, Any] = _looks().document(self)
        return document

    def __str__(self) -> str:
        """One screen, as the verb prints it."""
        return str(_looks().text(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return str(_looks().html(self))


def write_report(result: object, folder: Path) -> Path:
    """The report of a result as a file of its own in `folder`."""
    path: Path = _looks().write_report(result, folder)
    return path


def _looks() -> Any:
    return importlib.import_module("vramcast.report.looks")
