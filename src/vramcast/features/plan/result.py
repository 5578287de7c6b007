"""A ramp-up as plain data for reports: what to check first, then each run up to the one that is wished for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.features.advise.result import Advice, ConfigText
from vramcast.gpus.state import LocalGpu
from vramcast.memory.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckItem:
    """Something to look at before anything is started."""

    name: str
    text: str
    ok: bool | None = None
    """None: it cannot be told from here."""
    needed_bytes: int | None = None
    there_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RampStep:
    """One run of the ramp-up, traced as it is."""

    name: str
    overrides: Mapping[str, Any]
    """Dotted key of the job → value; empty for the job as it is."""
    batch: int
    accumulation: int
    gpus: int
    sizes: Mapping[str, int]
    """Those that the job says, but for the batch."""
    prediction: Prediction
    config: ConfigText
    steps: int
    """Optimizer steps until the predicted peak has been reached."""
    watch: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    @property
    def comfortable(self) -> bool:
        """It fits with the margin."""
        return self.prediction.comfortable


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    job: str
    recognised_as: str
    local: LocalGpu | None
    wished: Prediction
    """The job as it is."""
    checks: tuple[CheckItem, ...]
    steps: tuple[RampStep, ...]
    """In order; the last that is shown either is the job as it is, or does not fit."""
    steps_key: str = ""
    """What the user's format calls the number of optimizer steps."""
    advice: Advice | None = None
    """Where the job as it is does not fit: what to do instead."""
    left_out: tuple[str, ...] = ()
    """Runs that this model cannot do, and why."""

    @property
    def reached(self) -> bool:
        return self.wished.fits

    @property
    def first_that_does_not_fit(self) -> RampStep | None:
        return next((step for step in self.steps if not step.fits), None)
