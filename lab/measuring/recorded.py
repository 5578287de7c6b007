"""What every recorded workload has, whatever was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recorded:
    """Which workload ran, and on which card."""

    name: str
    factory: str
    args: Mapping[str, Any]
    tags: tuple[str, ...]
    seed: int
    gpu: str


def identity(record: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """The fields of `Recorded`, from a record of a measurement."""
    return {
        "name": record["name"],
        "factory": record["factory"],
        "args": record["args"],
        "tags": tuple(record["tags"]),
        "seed": record.get("seed", 0),
        "gpu": gpu,
    }
