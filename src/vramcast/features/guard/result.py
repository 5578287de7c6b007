"""What a guard found, as plain data: the prediction, what is there for it, the verdict, and what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.gpus import GpuSpec
from vramcast.memory.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    gpu: GpuSpec
    total_bytes: int
    free_bytes: int
    """On the card now; of a card that was only named, all it has."""
    available_bytes: int
    """For the run, CUDA context included."""
    where: str
    """For a sentence: "free on an H200 (device 0)"."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A fallback that was predicted, whether it helped or not."""

    name: str
    changes: Mapping[str, Any]
    fits: bool
    device_bytes: int | None
    """None where it could not be predicted; `reason` says why."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardResult:
    """`prediction` is of what will be trained: with the fallback, if one was applied."""

    name: str
    prediction: Prediction | None
    room: Room | None
    fits: bool | None
    """None where nothing could be predicted; `reason` says why."""
    reason: str = ""
    margin: float = 0.0
    fallback: Tried | None = None
    """The one that was applied."""
    tried: tuple[Tried, ...] = ()
    settings: Any = None
    """What to train with: the Job, or the arguments of the function, with the fallback put in."""

    @property
    def free_bytes(self) -> int | None:
        """Free on the card now; of a card that was only named, all it has."""
        return None if self.room is None else self.room.free_bytes

    @property
    def available_bytes(self) -> int | None:
        """For this run, CUDA context included: what is free, and what of this process belongs to the run already."""
        return None if self.room is None else int(self.room.available_bytes * (1 - self.margin))
