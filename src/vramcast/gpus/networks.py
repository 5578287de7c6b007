"""The network that joins machines with such cards, as their makers build them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Network:
    name: str
    bytes_per_second: float
    """Of one card's adapter, in one direction."""
    source: str


@cache
def network_of(compute_capability: tuple[int, int]) -> Network:
    """The usual one; the last in the file where no machine is known."""
    entries = tomllib.loads(files("vramcast.gpus").joinpath("networks.toml").read_text(encoding="utf-8"))["network"]
    found = next((entry for entry in entries if list(compute_capability) in entry["capabilities"]), entries[-1])
    return Network(found["name"], found["gb_per_s"] * _GIGA, found["source"])
