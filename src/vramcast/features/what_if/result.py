"""Changes to a job and what becomes of it with them, as plain data for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.base.shown import Shown
from vramcast.features.advise.result import ConfigText
from vramcast.memory.prediction import Prediction
from vramcast.timing import StepTime, Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The job with some changes, traced as it would then be."""

    changes: tuple[str, ...]
    """In words; none for the job as it is."""
    costs: tuple[str, ...]
    """What each of them costs."""
    overrides: Mapping[str, Any]
    prediction: Prediction
    time: StepTime | None
    throughput: Throughput | None

    @property
    def text(self) -> str:
        return " + ".join(self.changes) or "as it is"

    @property
    def samples_per_second(self) -> float:
        return 0.0 if self.throughput is None else self.throughput.samples_per_second


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WhatIfs(Shown):
    job: str
    recognised_as: str
    asked: Outcome
    """The job as it is."""
    outcomes: tuple[Outcome, ...]
    """Those that fit first, the fastest first."""
    best: ConfigText | None = None
    """The first of them as a change to paste; None where nothing that fits is faster."""
    refused: tuple[str, ...] = ()
    """Changes that the model does not allow, with the reason."""
