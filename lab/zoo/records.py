"""How each script came out, kept as JSON beside the manifest."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

PREDICTED = Path(__file__).with_name("predicted.json")
MEASURED = Path(__file__).with_name("measured.json")


class Records:
    """Records by script; each is written as soon as it is known, so that a run that is cut short loses nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.by_script = self._read()

    def keep(self, name: str, record: dict[str, Any]) -> None:
        """Put the record in place of the earlier one; those that another process has written meanwhile stay."""
        with self._lock:
            self.by_script = self._read() | {name: record}
            text = json.dumps(dict(sorted(self.by_script.items())), indent=1, ensure_ascii=False)
            self._path.write_text(text + "\n", encoding="utf-8")

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self._path.is_file():
            return {}
        document: dict[str, dict[str, Any]] = json.loads(self._path.read_text(encoding="utf-8"))
        return document
