"""The JSON Schema of vramcast.yaml, made from the fields of a Job, for editors and other tools."""

from __future__ import annotations

import json
from typing import Any

from vramcast.jobs.schema import Job


def schema_document() -> dict[str, Any]:
    document = Job.model_json_schema()
    _tidy(document)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vramcast.yaml",
        **{key: value for key, value in document.items() if key != "title"},
    }


def schema_text() -> str:
    return json.dumps(schema_document(), indent=2, ensure_ascii=False) + "\n"


def _tidy(node: Any) -> None:
    """One line for each description, and no titles that only repeat the key."""
    if isinstance(node, dict):
        if isinstance(node.get("description"), str):
            node["description"] = " ".join(node["description"].split())
        if isinstance(node.get("title"), str):
            del node["title"]
        for value in node.values():
            _tidy(value)
    elif isinstance(node, list):
        for value in node:
            _tidy(value)
