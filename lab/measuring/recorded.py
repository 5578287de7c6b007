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


def factory_of(record: Mapping[str, Any]) -> str:
    """The function that makes the workload's step. Older records name its module by the folder it was in then."""
    name: str = record["factory"]
    return name.replace("corpus.workloads.", "lab.workloads.", 1)


def identity(record: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """The fields of `Recorded`, from a record of a measurement."""
    return {
        "name": record["name"],
        "factory": factory_of(record),
        "args": record["args"],
        "tags": tuple(record["tags"]),
        "seed": record.get("seed", 0),
        "gpu": gpu,
    }
