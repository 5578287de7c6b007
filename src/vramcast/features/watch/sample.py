"""One look at the cards: what is used, and what of it belongs to the processes that are watched."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.gpus.survey import GpuProcess

BASES = {
    "card": "all that is used on the card",
    "processes": "what the driver names for the watched processes",
    "growth": "what the card holds more than at the start (the driver names no watched process)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSample:
    index: int
    name: str
    total_bytes: int
    used_bytes: int
    free_bytes: int
    watched_bytes: int
    basis: str
    """What `watched_bytes` is: one of BASES."""
    busy_percent: int | None = None
    temperature_celsius: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    processes_known: bool = True
    watched_pids: tuple[int, ...] = ()

    @property
    def used_share(self) -> float:
        return self.used_bytes / self.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    time: float
    """Seconds since 1970."""
    seconds: float
    """Since the watch began."""
    cards: tuple[CardSample, ...]
    problems: tuple[str, ...] = ()
    """Cards that do not answer now."""
