"""Change single values in the text of a TOML file: `key = value` below a `[section]`, as people write them.

The caller reads the result back, and so finds out where this was too simple (inline tables, dotted keys).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from vramcast.jobs.yaml_file import Key

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_VALUE = r"\"(?:\\.|[^\"\\])*\"|'[^']*'|\[[^\]]*\]|[^#\s]+"


def edit_toml(text: str, edits: Mapping[Key, Any]) -> str:
    for (*section, name), value in edits.items():
        text = _edit(text, ".".join(str(part) for part in section), str(name), json.dumps(value))
    return text


def _edit(text: str, section: str, name: str, value: str) -> str:
    lines = text.splitlines()
    start, end = _extent(lines, section)
    if start is None:
        return f"{text.rstrip()}\n\n[{section}]\n{name} = {value}\n"
    entry = re.compile(rf"(\s*[\"']?{re.escape(name)}[\"']?\s*=\s*)(?:{_VALUE})(.*)")
    for i in range(start, end):
        match = entry.fullmatch(lines[i])
        if match is not None:
            lines[i] = f"{match[1]}{value}{match[2]}"
            break
    else:
        while end > start and not lines[end - 1].strip():
            end -= 1
        lines.insert(end, f"{name} = {value}")
    return "\n".join(lines) + "\n"


def _extent(lines: list[str], section: str) -> tuple[int | None, int]:
    """The lines below the header of the section, up to the next header; without a name, those before the first."""
    headers = [(i, match[1]) for i, line in enumerate(lines) if (match := _HEADER.fullmatch(line))]
    start = 0 if not section else next((i + 1 for i, name in headers if name == section), None)
    if start is None:
        return None, 0
    return start, next((i for i, _ in headers if i >= start), len(lines))
