"""Edit a config file of any of the usual formats, told by its suffix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.jobs.editing.toml_text import edit_toml
from vramcast.jobs.editing.yaml_text import edit_json, edit_yaml
from vramcast.jobs.yaml_file import Key


def edit_document(text: str, path: Path, edits: Mapping[Key, Any]) -> str:
    suffix = path.suffix.lower()
    edit = edit_yaml if suffix in (".yaml", ".yml") else edit_toml if suffix == ".toml" else edit_json
    return edit(text, edits)
