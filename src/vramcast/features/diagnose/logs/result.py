"""What was found in a log, as plain data for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEASURED, WORKED_OUT, PREDICTED, UNKNOWN = "measured", "worked out", "predicted", "not known"
BOUND = "at most"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """What a prediction of the same job says about the time of a step. This is all that diagnosis takes from one."""

    seconds: float
    phases: Mapping[str, float]
    """Seconds by phase (the names in sample.PHASES); recomputation apart from backward."""
    modules: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the forward pass by module."""
    limited_by: str = ""
    """host, arithmetic or memory bandwidth."""
    samples_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedChange:
    """The job with a change, or as it is, as far as its time goes."""

    change: str
    seconds: float
    """Seconds of a step without any wait for data."""
    samples: int
    """Samples of a step, over all GPUs."""
    device_bytes: int
    fits: bool
    loading_seconds: float | None = None
    """Seconds to load the samples of a step; None where the job does not say."""
    workers: int = 0
    """Processes that load meanwhile; 0 where the loop loads itself."""
    steps_per_epoch: float | None = None
    cost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A change, and the run with it."""

    change: str
    source: str
    """BOUND: no more can be gained, by the split of the step. PREDICTED: of the changed job. MEASURED: as it is."""
    step_seconds: float | None = None
    samples_per_second: float | None = None
    epoch_seconds: float | None = None
    total_seconds: float | None = None
    device_bytes: int | None = None
    fits: bool | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the step."""

    name: str
    seconds: float | None
    source: str
    phase: str | None = None
    covers: tuple[str, ...] = ()
    """The phases in it, where they could not be told apart."""
    children: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The time of a step by one of the ways a log gives it."""

    seconds: float
    mean_seconds: float
    """The mean, including the slow steps."""
    how: str
    count: int
    warm_up: int = 0
    """Slow steps at the beginning that were left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Irregular:
    """Steps that take longer than others."""

    kind: str
    """periodic, stalls, drift or evaluation."""
    text: str
    share: float
    """Share of the run's time that it costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How samples make a step. None: neither said nor in the log."""

    batch: int | None = None
    gpus: int | None = None
    accumulation: int | None = None
    sequence: int | None = None
    global_batch: int | None = None
    throughput_of: str = "all"
    """Whether samples/s counts all GPUs or one."""
    checkpointing: bool | None = None

    @property
    def samples_per_step(self) -> int | None:
        """Samples of all GPUs in a step."""
        if self.batch is not None:
            return self.batch * (self.gpus or 1) * (self.accumulation or 1)
        return self.global_batch

    @property
    def counted_samples(self) -> float | None:
        """What the log's throughput counts in a step."""
        samples = self.samples_per_step
        if samples is None or self.throughput_of == "all":
            return samples
        return samples / (self.gpus or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMemory:
    """What a job that belongs to the log takes; diagnosis shows it beside what the log says."""

    name: str
    gpu: str
    device_bytes: int
    reserved_bytes: int
    limit_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    logs: tuple[str, ...]
    formats: Mapping[str, int]
    """Reader → lines it read."""
    lines: int
    lines_parsed: int
    setup: Setup
    step: Estimate | None
    other_estimates: tuple[Estimate, ...]
    samples_per_second: float | None
    """On all GPUs together."""
    tokens_per_second: float | None
    last_step: int | None
    total_steps: int | None
    left_seconds: float | None
    total_seconds: float | None
    epoch_seconds: float | None
    """Where the job says how large its dataset is."""
    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    """Phases that the log did not record."""
    bottleneck_kind: str
    """data, computation, gradient sync, host, contradiction, or unknown."""
    bottleneck: str
    helps: tuple[WhatIf, ...]
    """Best first."""
    will_not_help: tuple[WhatIf, ...]
    irregular: tuple[Irregular, ...]
    notes: tuple[str, ...]
    memory_bytes: int | None
    """The most the log says."""
    mfu: float | None
    job: JobMemory | None = None
    predicted: PredictedStep | None = None
    what_ifs: tuple[WhatIf, ...] = ()
    """Changes that were predicted; empty without a prediction."""
