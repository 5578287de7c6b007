"""The predicted time of a step: plain figures, and the tree of modules they belong to."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vramcast.timing.interval import interval
from vramcast.timing.queues import Timeline

HOST, ARITHMETIC, BANDWIDTH, LAUNCHES = "host", "arithmetic", "memory bandwidth", "small kernels"
COMMUNICATION = "communication"
"""What kernels do not hide of it."""
BUBBLE = "pipeline bubble"
DATA, FORWARD, BACKWARD, SYNC, OPTIMIZER = "data", "forward", "backward", "gradient sync", "optimizer"


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """One module; the root's name is empty. Seconds are of the whole subtree."""

    name: str
    forward_seconds: float
    backward_seconds: float
    recompute_seconds: float
    other_seconds: float
    """The optimizer, and what belongs to no phase of a module."""
    children: tuple[ModuleTime, ...]
    """Longest first."""

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward_seconds + self.recompute_seconds + self.other_seconds

    def walk(self) -> Iterator[ModuleTime]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """The ops of the step one by one, for a picture of it."""

    names: Sequence[str]
    modules: Sequence[str]
    phases: Sequence[tuple[str, float, float]]
    """Name, begin and end."""
    kernels: array[int]
    device_seconds: array[float]
    requested_bytes: array[int]
    """What the program holds on the card after each row."""
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """How long one step takes on one card, in a loop that runs on."""

    seconds: float
    low_seconds: float
    high_seconds: float
    """Nine of ten measured workloads lie between the two."""
    phases: Mapping[str, float]
    """data, forward, backward (recomputation included), gradient sync (what backward does not hide), optimizer; they
    add up to the step."""
    recompute_seconds: float
    """Part of the backward phase in which checkpointed blocks run again."""
    device_seconds: float
    """The card is busy."""
    host_seconds: float
    """The host issues ops."""
    host: str
    """Which host was assumed, in words."""
    host_factor: float
    """How many times as long it takes as an undisturbed one."""
    card_seconds: float
    """The step if the host took no time: what the card alone would reach."""
    limits: Mapping[str, float]
    """What the step waits for, as shares of it: the host, arithmetic, memory bandwidth, small kernels, gradient sync,
    data. They add up to one."""
    flops: float
    peak_share: float | None
    """Share of the arithmetic that the card's tensor cores or FP32 units could do in that time."""
    waits: int
    """How often the host waits for the card."""
    ops: int
    modules: ModuleTime
    calibrated: bool
    source: str
    """Where the times of kernels come from."""
    communication_seconds: float = 0.0
    """Collectives, hidden or not."""
    unknown_ops: Mapping[str, int] = field(default_factory=dict)
    rows: StepRows | None = field(default=None, repr=False, compare=False)

    @property
    def exposed_communication_seconds(self) -> float:
        """What the step waits for collectives and for other stages of a pipeline."""
        return (self.limits.get(COMMUNICATION, 0.0) + self.limits.get(BUBBLE, 0.0)) * self.seconds

    def with_bubble(self, seconds: float) -> StepTime:
        """The step with the time that a pipeline stage waits for the others."""
        if not seconds:
            return self
        whole = self.seconds + seconds
        share = self.seconds / whole
        limits = {name: value * share for name, value in self.limits.items()}
        return replace(
            self,
            seconds=whole,
            low_seconds=self.low_seconds / share,
            high_seconds=self.high_seconds / share,
            phases={**self.phases, BUBBLE: seconds},
            limits={**limits, BUBBLE: 1 - share},
            peak_share=None if self.peak_share is None else self.peak_share * share,
        )

    def by_values(self) -> StepTime:
        """The same step where values decide on sizes or how often a loop runs: less certain."""
        low, high = interval(self.seconds, calibrated=self.calibrated, by_values=True)
        return replace(self, low_seconds=low, high_seconds=high)

    @property
    def host_bound(self) -> bool:
        """The step waits for the host more than for anything else."""
        return self.limited_by == HOST

    @property
    def limited_by(self) -> str:
        return max(self.limits, key=lambda name: self.limits[name])
