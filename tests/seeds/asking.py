"""Ask the command line as a user does, in this process, and read its JSON."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from vramcast.cli.main import main


def ask(*argv: str, code: int | None = 0) -> Any:
    """The document that `vramcast ... --json` prints; its exit code must be `code`."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        found = main([*argv, "--json"])
    assert code is None or found == code, written.getvalue()
    return json.loads(written.getvalue())


def stages_of(document: Any) -> dict[str, Any]:
    """Every stage of a prediction by its name."""
    found: dict[str, Any] = {}

    def walk(node: Any) -> None:
        found[node["name"]] = node
        for child in node["children"]:
            walk(child)

    walk(document["stages"])
    return found
