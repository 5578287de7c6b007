"""How long a sample takes: predicted of what was traced; of the rest by rule of thumb, from a traced relative."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, prod

from vramcast.advice.combination import Combination
from vramcast.advice.runs import Traced
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job


class Pace:
    def __init__(self, job: Job, found: Mapping[Combination, Traced]) -> None:
        """`found` grows while the search goes on; the job as it is comes first."""
        self._job, self._found = job, found
        self._seconds: dict[Combination, float] = {}
        """Of a sample, of the traced runs: predicted, times what is only known by rule of thumb."""
        self._known: dict[Combination, float] = {}
        self._seen = 0

    def time(self, one: Combination) -> float:
        """Of a sample, beside one of the job as it is. A smaller sample counts for its share of a whole one."""
        self._learn()
        if one not in self._known:
            run = one.without("allocator")
            if run not in self._known:
                self._known[run] = self._time(run)
            self._known[one] = self._known[run]
        return self._known[one]

    def seconds_per_sample(self, one: Combination) -> float | None:
        """Of all cards together; None where nothing is known of the job as it is."""
        self._learn()
        asked = self._seconds.get(Combination(()))
        return None if asked is None else asked * self.time(one) * one.sample_share

    def _learn(self) -> None:
        if len(self._found) == self._seen:
            return
        self._seen = len(self._found)
        self._known.clear()
        for one, traced in self._found.items():
            is_run = one.without("allocator") == one
            if is_run and one not in self._seconds and traced.time is not None:
                by_rule = prod(option.time for option in one.by_rule)
                self._seconds[one] = by_rule * traced.time.seconds / samples_per_step(self._job, one)

    def _time(self, one: Combination) -> float:
        asked = self._seconds.get(Combination(()))
        if asked is None:
            return one.time
        if one in self._seconds:
            return self._seconds[one] / asked / one.sample_share
        options, traced, batch = set(one.options), set(one.traced), one.batch(self._job)
        relative = min(
            self._seconds,
            key=lambda other: (
                len(traced.symmetric_difference(other.traced)),
                abs(log(other.batch(self._job) / batch)),
                len(options.symmetric_difference(other.options)),
            ),
        )
        return self._seconds[relative] / asked / relative.sample_share * one.time / relative.time


def samples_per_step(job: Job, one: Combination) -> int:
    """Of all cards."""
    changed = with_overrides(job, one.changes)
    return changed.effective_sizes["batch"] * changed.accumulation * changed.gpus.count
