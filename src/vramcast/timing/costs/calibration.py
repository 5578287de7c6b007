"""What was measured on a card and replaces the specification's guesses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """Efficiencies by kind of kernel."""

    gpu: str
    source: str
