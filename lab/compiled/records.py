"""What was measured, one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parent / "measured" / "h200-torch2.11.0.jsonl"


def read_lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in MEASURED.read_text().splitlines()]


def measured() -> dict[str, dict[str, Any]]:
    """The workloads by name."""
    return {record["name"]: record for record in read_lines() if "name" in record}
