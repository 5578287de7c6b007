"""How long a sample takes: predicted of what was traced; of the rest by rule of thumb, from a traced relative."""

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
    """Predicted, times what is only known by rule of thumb."""
    batch: int
    device_seconds: float
    host_seconds: float
    """Of a pass: the card's part grows with the batch, what it takes to issue the ops does not."""

    def beside(self, batch: int) -> float:
        """The time of a sample in a batch of another size, beside that of one here."""
        here, there = (
            max(self.device_seconds * size / self.batch, self.host_seconds) / size for size in (self.batch, batch)
        )
        return there / here if here else 1.0


class Pace:
    def __init__(self, job: Job, found: Mapping[Combination, Traced]) -> None:
        """`found` grows while the search goes on; the job as it is comes first."""
        self._job, self._found = job, found
        self._runs: dict[Combination, _Run] = {}
        self._known: dict[Combination, float] = {}
        self._seen = 0

    def time(self, one: Combination) -> float:
        """Of a sample, beside one of the job as it is. A smaller sample counts for its share of a whole one."""
        self._learn()
        if one not in self._known:
            if one.run not in self._known:
                self._known[one.run] = self._time(one.run)
            self._known[one] = self._known[one.run]
        return self._known[one]

    def seconds_per_sample(self, one: Combination) -> float | None:
        """Of all cards together; None where nothing is known of the job as it is."""
        self._learn()
        asked = self._runs.get(_ASKED)
        return None if asked is None else asked.sample_seconds * self.time(one) * one.sample_share

    def _learn(self) -> None:
        if len(self._found) == self._seen:
            return
        self._seen = len(self._found)
        self._known.clear()
        for one, traced in self._found.items():
            time = traced.time
            if time is None or one in self._runs or one.run != one:
                continue
            job = with_overrides(self._job, one.changes)
            self._runs[one] = _Run(
                sample_seconds=prod(option.time for option in one.by_rule) * time.seconds / job.samples_per_step,
                batch=job.effective_sizes["batch"],
                device_seconds=time.device_seconds / job.accumulation,
                host_seconds=time.host_seconds / job.accumulation,
            )

    def _time(self, one: Combination) -> float:
        asked = self._runs.get(_ASKED)
        if asked is None:
            return one.time
        if one in self._runs:
            return self._runs[one].sample_seconds / asked.sample_seconds / one.sample_share
        options, traced, batch = set(one.options), set(one.traced), one.batch(self._job)
        relative = min(
            self._runs,
            key=lambda other: (
                len(traced.symmetric_difference(other.traced)),
                abs(log(self._runs[other].batch / batch)),
                len(options.symmetric_difference(other.options)),
            ),
        )
        run = self._runs[relative]
        rules = one.without("batch").time / relative.without("batch").time
        return run.sample_seconds / asked.sample_seconds / relative.sample_share * rules * run.beside(batch)
