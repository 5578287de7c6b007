"""Which combinations to trace: estimates order them, and what is kept has been traced and replayed as it is."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vramcast.advice.combination import Combination, combinations
from vramcast.advice.estimate import Estimates
from vramcast.advice.option import CHANGES_TRAINING, LAST_RESORT, USUAL, Option
from vramcast.errors import UsageError, VramcastError
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import with_overrides
from vramcast.jobs.run import limit_for
from vramcast.jobs.schema import Job
from vramcast.memory import Prediction
from vramcast.memory import predict as predict_trace
from vramcast.memory.cards import with_margin

OBJECTIVES = ("throughput", "memory", "closest")

_SHOWN = 3
_FRONT = 2
"""Points of the front that are traced beside the best."""
_FASTER = 0.99
"""A further suggestion takes at most this share of the time of those before it."""
_TRIES = 8
"""Traces that may disappoint before the search gives up on a level of risk."""

Found = dict[Combination, Prediction]


@dataclass
class Search:
    job: Job
    gpu: GpuSpec
    options: dict[str, list[Option]]
    objective: str
    steps: int
    progress: Callable[[str], None]
    asked: Prediction
    """The job as it is."""
    combinations: int = 0
    estimates: Estimates = field(init=False)
    found: Found = field(default_factory=dict)
    """All that were traced, fitting or not."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"--objective {self.objective}: write one of {', '.join(OBJECTIVES)}")
        self.estimates = Estimates(self.job, self.gpu, self.steps, self.progress)
        self.found[Combination(())] = self.asked

    @property
    def n_traced(self) -> int:
        return self.estimates.n_traced + len(self.found)

    def best(self) -> list[Combination]:
        """The best few. What risks more is looked at only where less does not do, but for the least memory."""
        levels = (USUAL, CHANGES_TRAINING, LAST_RESORT)
        for risk in levels[1:] if self.objective == "memory" else levels:
            estimated = self._estimated(risk)
            chosen = self._choose(estimated)
            if chosen:
                self._front(estimated)
                return chosen
        return []

    def front(self) -> list[Combination]:
        """Of what was traced and fits: what nothing else beats in both memory and speed."""
        fitting = [one for one, prediction in self.found.items() if prediction.fits]
        return pareto(fitting, lambda one: self.found[one].device_bytes)

    def smallest(self) -> Combination:
        """What needs the least, traced: the least by estimate, until its real figures are the least."""
        estimated = self._estimated(LAST_RESORT)
        impossible: set[Combination] = set()
        for _ in range(_TRIES):
            sizes = {
                one: self.found[one].device_bytes if one in self.found else self.estimates.device_bytes(one) or 0
                for one in estimated
                if one not in impossible
            }
            least = min(sizes, key=lambda one: (sizes[one], len(one.options)), default=None)
            if least is None or least in self.found:
                break
            if self._trace(least) is None:
                impossible.add(least)
        return min(self.found, key=lambda one: (self.found[one].device_bytes, len(one.options)))

    def _estimated(self, risk: int) -> dict[Combination, int]:
        every = list(combinations(self.options, risk))
        self.combinations = max(self.combinations, len(every))
        sizes = {one: self.estimates.device_bytes(one) for one in every}
        return {one: size for one, size in sizes.items() if size is not None}

    def _choose(self, estimated: dict[Combination, int]) -> list[Combination]:
        """In the order of the objective; after the first, only what is faster than all before it.

        An estimate gives a combination its place; when its turn comes it is traced, and takes the place that it has
        by its real figures.
        """
        every = list(estimated)
        queue = [(self._rank(one, estimated[one]), number) for number, one in enumerate(every)]
        heapq.heapify(queue)
        chosen: list[Combination] = []
        failed = 0
        while queue and len(chosen) < _SHOWN and failed < _TRIES:
            place, number = heapq.heappop(queue)
            one = every[number]
            if any(one.time > other.time * _FASTER for other in chosen):
                continue
            traced = self.found.get(one)
            if (traced is None and not self._may_fit(one)) or (traced is not None and not traced.fits):
                continue
            now = self._rank(one, traced.device_bytes if traced else self.estimates.device_bytes(one) or 0)
            if now > place:
                heapq.heappush(queue, (now, number))
            elif traced is not None:
                chosen.append(one)
            else:
                real = self._trace(one)
                if real is not None and real.fits:
                    heapq.heappush(queue, (self._rank(one, real.device_bytes), number))
                else:
                    failed += 1
        return chosen

    def _front(self, estimated: dict[Combination, int]) -> None:
        fitting = [one for one in estimated if self._may_fit(one)]
        front = pareto(fitting, lambda one: estimated[one])
        for one in (front[0], front[len(front) // 2])[:_FRONT] if front else ():
            self._trace(one)

    def _rank(self, one: Combination, device_bytes: int) -> tuple[float, ...]:
        tight = with_margin(device_bytes) > self.asked.limit_bytes
        changed = len(one.options)
        if self.objective == "memory":
            return device_bytes, one.time, changed
        if self.objective == "closest":
            return changed, one.risk, one.time, tight
        return one.risk, one.sacrifices, tight, one.time, changed

    def _may_fit(self, one: Combination) -> bool:
        if any(option.text in self.estimates.refused for option in one.options):
            return False
        size = self.estimates.device_bytes(one)
        return size is not None and size <= self.asked.limit_bytes

    def _trace(self, one: Combination) -> Prediction | None:
        """As `predict` does, so that the figures are the same when the config is read back."""
        if one not in self.found:
            from vramcast.jobs.tracing import trace_job

            self.progress(f"tracing {one.text}")
            try:
                job = with_overrides(self.job, one.changes)
                traced = trace_job(
                    job, self.gpu, steps=self.steps, allocator_conf=job.allocator_conf, limit_bytes=limit_for(job, None)
                )
            except VramcastError as error:
                blamed = [option.text for option in one.options if option.activations_ratio != 1]
                self.estimates.refused[(blamed or [one.text])[0]] = str(error)
                return None
            self.found[one] = predict_trace(traced.trace)
            self.estimates.learn(one, self.found[one])
        return self.found[one]


def pareto(ones: Iterable[Combination], size: Callable[[Combination], int]) -> list[Combination]:
    """Those that no other beats in both size and time, least memory first."""
    kept: list[Combination] = []
    for one in sorted(ones, key=lambda one: (size(one), one.time, one.risk, len(one.options))):
        if not kept or one.time < kept[-1].time - 1e-9:
            kept.append(one)
    return kept
