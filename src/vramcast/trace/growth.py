"""Memory that a run makes in every step and never gives back. Pure data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    bytes_per_step: int
    """On average over the steps that were looked at."""
    steps: int
    """How many steps were looked at; what each of them made, except the first and the last, was still alive at the
    end."""
    where: str | None = None
    """file:line that made most of it."""
    op: str = ""
    module: str = ""
    """Which op made most of it, in which module."""
    held_by: str = ""
    """What keeps it alive, as the script names it; empty where that was not found."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Growth:
        where = document.get("where")
        if int(document["bytes_per_step"]) <= 0 or int(document["steps"]) <= 0:
            raise ValueError("a run that grows does so by more than nothing")
        return Growth(
            bytes_per_step=int(document["bytes_per_step"]),
            steps=int(document["steps"]),
            where=None if where is None else str(where),
            op=str(document.get("op", "")),
            module=str(document.get("module", "")),
            held_by=str(document.get("held_by", "")),
        )
