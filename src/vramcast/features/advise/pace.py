"""How long a sample takes: predicted for what was traced, and estimated for the rest from the nearest trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod

from vramcast.features.advise.combination import Combination
from vramcast.features.advise.runs import Traced
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job

_ASKED = Combination(())


@dataclass(frozen=True, slots=True)
class _Run:
    """A traced run."""

    sample_seconds: float
    """Predicted, times the rules of thumb for what a trace does not show."""
    batch: int
    device_seconds: float
    host_seconds: float
    """Time to issue the ops of a pass, which does not grow with the batch as the card's part does."""

    def beside(self, batch: int) -> float:
        """The time of a sample in a batch of another size, relative to one here."""
        here, there = (
            max(self.device_seconds * size / self.batch, self.host_seconds) / size for size in (self.batch, batch)
        )
        return there / here if here else 1.0


class Pace:
    def __init__(self, job: Job, traced: Mapping[Combination, Traced]) -> None:
        """`traced` grows while the search goes on; the job as it is comes first."""
        self._job, self._traced = job, traced
        self._runs: dict[Combination, _Run] = {}
        self._known: dict[Combination, float] = {}
        self._seen = 0

    def time(self, combination: Combination) -> float:
        """Time of a sample relative to the job as it is. A smaller sample counts for its share of a whole one."""
        self._learn()
        if combination not in self._known:
            if combination.run not in self._known:
                self._known[combination.run] = self._time(combination.run)
            self._known[combination] = self._known[combination.run]
        return self._known[combination]

    def seconds_per_sample(self, combination: Combination) -> float | None:
        """Seconds for a sample on all cards together; None where the time of the job as it is is not known."""
        self._learn()
        asked = self._runs.get(_ASKED)
        return None if asked is None else asked.sample_seconds * self.time(combination) * combination.sample_share

    def _learn(self) -> None:
        if len(self._traced) == self._seen:
            return
        self._seen = len(self._traced)
        self._known.clear()
        for combination, traced in self._traced.items():
            time = traced.time
            if time is None or combination in self._runs or combination.run != combination:
                continue
            job = with_overrides(self._job, combination.changes)
            self._runs[combination] = _Run(
                sample_seconds=prod(option.time for option in combination.by_rule)
                * time.seconds
                / job.samples_per_step,
                batch=job.effective_sizes["batch"],
                device_seconds=time.device_seconds / job.accumulation,
                host_seconds=time.host_seconds / job.accumulation,
            )

    def _time(self, combination: Combination) -> float:
        asked = self._runs.get(_ASKED)
        if asked is None:
            return combination.time
        if combination in self._runs:
            return self._runs[combination].sample_seconds / asked.sample_seconds / combination.sample_share
        options, traced, batch = set(combination.options), set(combination.traced), combination.batch(self._job)
        relative = min(
            self._runs,
            key=lambda other: (
                len(traced.symmetric_difference(other.traced)),
                abs(log(self._runs[other].batch / batch)),
                len(options.symmetric_difference(other.options)),
            ),
        )
        run = self._runs[relative]
        rules = combination.without("batch").time / relative.without("batch").time
        return run.sample_seconds / asked.sample_seconds / relative.sample_share * rules * run.beside(batch)
