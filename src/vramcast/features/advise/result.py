"""What was advised, as plain data for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.gpus.state import LocalGpu
from vramcast.memory.cards import CardFit
from vramcast.memory.prediction import Prediction
from vramcast.timing import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob that is turned."""

    knob: str
    text: str
    cost: str
    risk: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigText:
    """What to paste."""

    kind: str
    """diff: of the user's files. flags: the user's training command, changed. command: options of vramcast that say the
    same. changes: fields, for a job made in Python."""
    text: str
    beside: tuple[str, ...] = ()
    """What has to be done beside it, since no file of the user's can say it: a variable of the environment, a line of
    Python."""
    check: str = ""
    """The command that predicts it, once the text is in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A configuration that has been traced and replayed on the card."""

    changes: tuple[Change, ...]
    overrides: Mapping[str, Any]
    """Dotted key of the job → value."""
    prediction: Prediction
    batch: int
    accumulation: int
    samples_per_step: int
    time_factor: float
    """Time of a sample relative to the job as it is."""
    step_seconds: float | None
    """Predicted; None where the ops of the job are not known, and the factor is a rule of thumb."""
    samples_per_second: float | None
    """On all cards together."""
    by_rule: tuple[str, ...]
    """Changes whose part of the time is a rule of thumb."""
    config: ConfigText
    options: str = ""
    """Options of vramcast that say the same."""

    @property
    def text(self) -> str:
        return " + ".join(change.text for change in self.changes) or "as it is"

    @property
    def comfortable(self) -> bool:
        """It fits with the margin."""
        return self.prediction.comfortable


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSize:
    """The largest of one kind that fits, all else as it is."""

    axis: str
    """batch, sequence, resolution or frames."""
    sizes: Mapping[str, int]
    """Name → size; empty: not even the smallest fits."""
    device_bytes: int
    """What it takes; of the smallest where that does not fit."""
    of: str
    """The configuration it was looked for in; empty: the job as it is."""
    kept_batch: int | None = None
    """Of a batch: the largest up to it that makes exactly the samples of a step, with `accumulation` passes."""
    accumulation: int | None = None
    samples_per_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    job: str
    recognised_as: str
    objective: str
    keep: tuple[str, ...]
    local: LocalGpu | None
    asked: Prediction
    """The job as it is."""
    best: tuple[Suggestion, ...]
    """Best first; empty: nothing fits."""
    front: tuple[Suggestion, ...]
    """The suggestions that fit and that no other beats in both memory and speed, least memory first."""
    smallest: Suggestion | None
    """Where nothing fits: what needs the least."""
    smallest_card: CardFit | None
    """Where nothing fits: the smallest known card that holds `smallest`."""
    largest: tuple[LargestSize, ...] = ()
    """The largest sizes that fit, found exactly."""
    too_large: str = ""
    """Where nothing fits: what takes the room."""
    time: StepTime | None
    """Time of a step of the job as it is."""
    combinations: int
    traces: int
    refused: tuple[str, ...] = ()
    """What this model cannot do, and why."""
    next_questions: tuple[str, ...] = ()
    """Other options of `advise` that say more about this job."""

    @property
    def fits(self) -> bool:
        return bool(self.best)
