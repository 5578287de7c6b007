"""The answer to "does it fit here?" as plain data: what is needed, what is there, and the next thing to do."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.features.advise.result import Suggestion
from vramcast.gpus.state import LocalGpu
from vramcast.memory.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The one most useful thing to know next."""

    kind: str
    """batch, process, change, card, margin, or largest-part."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    name: str
    recognised_as: str
    prediction: Prediction
    local: LocalGpu | None
    """The card here that it was checked against; None for one that was named."""
    pointer: Pointer
    changes: tuple[Suggestion, ...] = ()
    """The best few that make it fit, each traced; none where it fits as it is."""
    margin: float = 0.0
    """The share of the memory that was asked to stay free; what is available is without it."""

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    @property
    def needed_bytes(self) -> int:
        return self.prediction.device_bytes

    @property
    def available_bytes(self) -> int:
        """What is free on the card here, or what the named one has."""
        return self.prediction.limit_bytes

    @property
    def with_margin_bytes(self) -> int:
        return self.prediction.with_margin_bytes
