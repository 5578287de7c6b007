"""Which combinations to trace: estimates order them, and what is kept has been traced and replayed as it is."""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import log

from vramcast.base.errors import UsageError, VramcastError
from vramcast.features.advise.combination import Combination, combinations
from vramcast.features.advise.estimate import Estimates
from vramcast.features.advise.front import FASTER, pareto, spread
from vramcast.features.advise.option import CHANGES_TRAINING, LAST_RESORT, USUAL, Option
from vramcast.features.advise.pace import Pace
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.jobs.fields import LARGEST_SIZE
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory import Prediction
from vramcast.memory import predict as predict_trace
from vramcast.memory.cards import with_margin
from vramcast.memory.replay import convolves

OBJECTIVES = ("throughput", "memory", "closest")

_SLOW, _VERY_SLOW, _ANY = 1.5, 2.0, float("inf")
"""What takes longer than the first is left until nothing else does; what takes longer than the second, also until
smaller samples do not do."""
_REACHES = (
    (USUAL, _SLOW), (USUAL, _VERY_SLOW), (CHANGES_TRAINING, _SLOW), (USUAL, _ANY), (CHANGES_TRAINING, _ANY),
    (LAST_RESORT, _SLOW), (LAST_RESORT, _ANY),
)  # fmt: skip
"""The risk that is taken and the time of a sample, in the order in which they are tried."""
_EVERY = ((CHANGES_TRAINING, _ANY), (LAST_RESORT, _ANY))
"""The same where the least memory is wanted."""
_SHOWN = 3
_FRONT = 6
"""Points of the front that are looked for."""
_FRONT_TRACES, _MANY_EVENTS = 4, 15_000
"""Runs that are traced for it; half of them where a trace is longer than that."""
_BEFORE_TIME = 5
"""What counts before the time for the throughput: risk, changes to the training, changes to the code beside a smaller
sample, how much is left of that, the margin."""
_TRIES = 8
"""Traces that may disappoint before the search gives up on a level of risk."""


@dataclass
class Search:
    job: Job
    runs: Runs
    options: dict[str, list[Option]]
    objective: str
    asked: Traced
    """The job as it is."""
    combinations: int = 0
    _reach: tuple[int, float] = _REACHES[0]
    """The risk that is taken, and how long a sample may take, by rule of thumb."""
    _beside: list[tuple[Combination, Callable[[], Traced | VramcastError]]] = field(default_factory=list)
    """Runs that are being traced beside what is looked for."""
    _traced_beside: int = 0
    """Runs of the front that were traced while a process had nothing else to do."""
    _within: dict[tuple[int, float], list[Combination]] = field(default_factory=dict)
    """All combinations within a reach."""
    estimates: Estimates = field(init=False)
    pace: Pace = field(init=False)
    found: dict[Combination, Traced] = field(default_factory=dict)
    """All that were traced, fitting or not."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"--objective {self.objective}: write one of {', '.join(OBJECTIVES)}")
        self.estimates = Estimates(self.job)
        self.pace = Pace(self.job, self.found)
        self.keep(Combination(()), self.asked)

    @property
    def limit_bytes(self) -> int:
        return self.asked.prediction.limit_bytes

    def prediction(self, one: Combination) -> Prediction:
        return self.found[one].prediction

    def keep(self, one: Combination, traced: Traced) -> None:
        self.found[one] = traced
        self.estimates.learn(one, traced.prediction, traced.corners)

    def best(self, meanwhile: Callable[[], None] = lambda: None) -> list[Combination]:
        """The best few. What risks more, or takes much longer, is looked at only where less does not do, but for the
        least memory. `meanwhile` is called once runs were traced that estimates are made from."""
        for reach in _EVERY if self.objective == "memory" else _REACHES:
            self._reach = reach
            estimated = self._estimated()
            meanwhile()
            chosen = self._choose(estimated)
            if chosen:
                return chosen
        return []

    def largest_batch(self, one: Combination, job: Job) -> int | None:
        """As estimated, of `job`: `one` with an accumulation of its own."""
        passes = Option(knob="batch", text="", changes={"accumulation": job.accumulation}, cost="")
        accumulates = Combination((*one.options, passes))

        def size(batch: int) -> int:
            return self.estimates.device_bytes(accumulates, one, batch) or 0

        if not size(1):
            return None
        high = 1
        while size(2 * high) <= self.limit_bytes and high < LARGEST_SIZE:
            high *= 2
        return max(1, bisect_right(range(high, 2 * high), self.limit_bytes, key=size) + high - 1)

    def fill_front(self) -> None:
        """Trace what the front lacks: where the step from one point to the next is the largest."""
        left = 0 if self._is_long and self._traced_beside else self._front_traces - self._traced_beside
        while left > 0 and (wanted := self._wanted_in_front()[: min(left, self.runs.workers)]):
            self._trace(wanted)
            left -= len(wanted)

    def begin_front(self) -> None:
        """Where a trace takes long, those of the front go on beside what is looked for meanwhile."""
        if self.runs.workers > 1 and self._is_long and not self._traced_beside:
            wanted = {self._run_of(one): one for one in reversed(self._wanted_in_front())}
            new = [one for run, one in reversed(wanted.items()) if run not in self.found]
            for one in new[: self._front_traces]:
                self._beside.append((one, self.runs.begin(self.wish(self._run_of(one), [one]))))
                self._traced_beside += 1

    def expect(self, begun: Iterable[tuple[Combination, Callable[[], Traced | VramcastError]]]) -> None:
        """Runs that are being traced."""
        self._beside.extend(begun)

    def collect(self) -> None:
        """What was begun is there."""
        for one, wait in self._beside:
            self._learn([self._run_of(one)], [wait()])
            self._replay([one])
        self._beside.clear()

    @property
    def _front_traces(self) -> int:
        """Runs that may be traced for the front alone."""
        return _FRONT_TRACES // (2 if self._is_long else 1)

    @property
    def _is_long(self) -> bool:
        """A trace takes long."""
        trace = self.asked.prediction.trace
        return trace is not None and trace.n_events > _MANY_EVENTS

    def _wanted_in_front(self) -> list[Combination]:
        """Not yet traced, and thought to lie in the front; first what is farthest from all that was."""
        fitting = [one for one in self._estimated() if self._may_fit(one)]
        front = spread(pareto(fitting, self._size, self.time), self._size, _FRONT)
        there = [self._size(one) for one in self.found if self.prediction(one).fits]

        def gap(one: Combination) -> float:
            return min((abs(log(max(1, self._size(one)) / size)) for size in there), default=0.0)

        return sorted((one for one in front if one not in self.found), key=gap, reverse=True)

    def front(self) -> list[Combination]:
        """Of what was traced and fits: what nothing else beats in both memory and speed."""
        fitting = [one for one in self.found if self.prediction(one).fits]
        size = self._size
        return spread(pareto(fitting, size, self.time), size, _FRONT)

    def smallest(self) -> Combination:
        """What needs the least, traced: the least by estimate, until its real figures are the least."""
        self._reach = _REACHES[-1]
        estimated = self._estimated()
        for _ in range(_TRIES):
            possible = [one for one in estimated if one in self.found or not self.estimates.is_refused(one)]
            ordered = sorted(possible, key=lambda one: (self._size(one), len(one.options)))
            if not ordered or ordered[0] in self.found:
                break
            self._trace([one for one in ordered[: self.runs.workers] if one not in self.found])
        return min(self.found, key=lambda one: (self._size(one), len(one.options)))

    def fitting(self) -> list[Combination]:
        """The best few of all that was traced and fits."""
        found = [one for one in self.found if self.prediction(one).fits]
        return sorted(found, key=self._rank)[:_SHOWN]

    def _estimated(self) -> list[Combination]:
        """Those within reach of which something is known, after what is needed for that was traced."""
        risk, most_time = self._reach
        options = {
            knob: [option for option in of_knob if option.time <= most_time] for knob, of_knob in self.options.items()
        }
        if self._reach not in self._within:
            self._within[self._reach] = list(combinations(options, risk))
        every = self._within[self._reach]
        self.combinations = max(self.combinations, len(every))
        alone = [
            Combination((option,))
            for of_knob in options.values()
            for option in of_knob
            if option.traced and option.risk <= risk
        ]
        # One that the model refuses is tried again in another way, until something is known.
        while unknown := [one for one in alone if not self.estimates.knows(one)]:
            likely = [self._likely(one) for one in unknown]
            self._trace(likely)
            if not any(one in self.found or self.estimates.is_refused(one) for one in likely):
                break
        return [one for one in every if not self.estimates.is_refused(one)]

    def _likely(self, one: Combination) -> Combination:
        """With the largest batch that is thought to fit, so that the trace may be an answer at once; where none does,
        with another optimizer too."""
        batches = sorted(self.options.get("batch", []), key=lambda option: option.time)
        ways = [one, *(one.with_option(option) for option in batches)]
        optimizers = [option for option in self.options.get("optimizer", ()) if option.risk <= USUAL]
        asked = Combination(())
        for optimizer in (None, *optimizers):
            for way in sorted(ways, key=lambda way: -way.batch(self.job)):
                full = way if optimizer is None else way.with_option(optimizer)
                guess = self.estimates.device_bytes(Combination(full.untraced), asked)
                if guess is not None and guess * one.guess <= self.limit_bytes and not self.estimates.is_refused(full):
                    return full
        return ways[-1]

    def _choose(self, estimated: Sequence[Combination]) -> list[Combination]:
        """In the order of the objective; after the first, only what is faster than all before it.

        An estimate gives a combination its place; when its turn comes it is traced, and takes the place that it has
        by its real figures.
        """
        queue = [(self._rank(one), number) for number, one in enumerate(estimated)]
        heapq.heapify(queue)
        chosen: list[Combination] = []
        failed = 0
        while queue and len(chosen) < _SHOWN and failed < _TRIES:
            place, number = heapq.heappop(queue)
            one = estimated[number]
            if chosen and self.objective == OBJECTIVES[0] and one.sacrifices > chosen[0].sacrifices:
                continue
            if any(self.time(one) > self.time(other) * FASTER for other in chosen) or not self._may_fit(one):
                continue
            now = self._rank(one)
            if now > place:
                heapq.heappush(queue, (now, number))
            elif one in self.found:
                chosen.append(one)
            elif not self._has_equal(one):
                self._trace([one, *self._beside_it(estimated, queue, one, len(chosen))])
                if one in self.found and self.prediction(one).fits:
                    heapq.heappush(queue, (self._rank(one), number))
                else:
                    failed += 1
        return chosen

    def _has_equal(self, one: Combination) -> bool:
        """What was traced is as good and about as fast: a trace that takes long would not be worth its time."""
        place = self._rank(one)[:_BEFORE_TIME]
        return (
            self._is_long
            and self.objective == OBJECTIVES[0]
            and any(
                self.prediction(other).fits
                and self._rank(other)[:_BEFORE_TIME] <= place
                and self.time(one) > self.time(other) * FASTER
                for other in self.found
            )
        )

    def _beside_it(
        self, estimated: Sequence[Combination], queue: Sequence[tuple[tuple[float, ...], int]], one: Combination, n: int
    ) -> list[Combination]:
        """What a process that has nothing to do can trace beside `one`."""
        if self._run_of(one) in self.found or self.runs.workers == 1:
            return []
        wanted = self._next(estimated, queue, one, n)
        if not wanted and self._traced_beside < self._front_traces:
            wanted = [other for other in self._wanted_in_front() if self._run_of(other) != self._run_of(one)][:1]
            self._traced_beside += len(wanted)
        return wanted

    def _next(
        self, estimated: Sequence[Combination], queue: Sequence[tuple[tuple[float, ...], int]], one: Combination, n: int
    ) -> list[Combination]:
        """What will be wanted after `one` if it fits, for workers that have nothing to do."""
        wanted: list[Combination] = []
        runs = {self._run_of(one)}
        room = min(self.runs.workers - 1, _SHOWN - 1 - n)
        fitting = [(self._rank(other), other) for other in self.found if self.prediction(other).fits]
        for place, number in sorted(queue) if room > 0 else ():
            other = estimated[number]
            before = (one, *wanted, *(found for rank, found in fitting if rank < place))
            faster = all(self.time(other) <= self.time(earlier) * FASTER for earlier in before)
            run = self._run_of(other)
            if faster and run not in runs and run not in self.found and self._may_fit(other):
                runs.add(run)
                wanted.append(other)
                if len(wanted) == room:
                    break
        return wanted

    def _rank(self, one: Combination) -> tuple[float, ...]:
        device_bytes = self._size(one)
        tight = with_margin(device_bytes) > self.limit_bytes
        changed = len(one.options)
        if self.objective == "memory":
            return device_bytes, self.time(one), changed
        if self.objective == "closest":
            return changed, one.risk, self.time(one), tight
        smaller = -one.sample_share
        return one.risk, one.sacrifices, one.in_code if smaller > -1 else 0, smaller, tight, self.time(one), changed

    def time(self, one: Combination) -> float:
        """Of a sample, beside the job as it is: predicted, or as estimated."""
        return self.pace.time(one)

    def _size(self, one: Combination) -> int:
        """Real, or as estimated."""
        if one in self.found:
            return self.prediction(one).device_bytes
        return self.estimates.device_bytes(one) or 0

    def _may_fit(self, one: Combination) -> bool:
        if one in self.found:
            return self.prediction(one).fits
        return not self.estimates.is_refused(one) and self._size(one) <= self.limit_bytes

    def _trace(self, ones: Iterable[Combination]) -> None:
        """Those that were not traced yet."""
        new = [one for one in ones if one not in self.found]
        wanted = list(dict.fromkeys(self._run_of(one) for one in new if self._run_of(one) not in self.found))
        self._learn(wanted, self.runs.trace([self.wish(one, new) for one in wanted]))
        self.collect()
        self._replay(new)

    def _learn(self, runs: Sequence[Combination], found: Sequence[Traced | VramcastError]) -> None:
        for one, traced in zip(runs, found, strict=True):
            if isinstance(traced, VramcastError):
                self.estimates.refuse(one, str(traced))
                continue
            self.keep(one, traced)
            for option in self.options.get("allocator", ()):
                if option.changes["allocator_conf"] in traced.under:
                    under = one.with_option(option)
                    self.keep(under, self._replayed(under, traced))

    def _replay(self, ones: Iterable[Combination]) -> None:
        """Those whose run was traced, under their setting of the allocator."""
        for one in ones:
            run = self.found.get(self._run_of(one))
            if one not in self.found and run is not None:
                self.keep(one, self._replayed(one, run))

    def wish(self, one: Combination, wanted: Iterable[Combination] = ()) -> Wish:
        """A run, and those of `wanted` that are the same under another setting of the allocator."""
        alike = [other.changes["allocator_conf"] for other in wanted if other != one and self._run_of(other) == one]
        settings = self.options.get("allocator", ()) if self._run_of(one) == one.run else ()
        perhaps = next((option.changes["allocator_conf"] for option in settings), "")
        return Wish(
            with_overrides(self.job, one.changes), one.text or "the job as it is", tuple(alike),
            perhaps if perhaps not in alike else "", all(option.knob != "offload" for option in one.options),
        )  # fmt: skip

    def _run_of(self, one: Combination) -> Combination:
        """A run does not depend on the allocator's setting, but for convolutions that look for room."""
        trace = self.asked.prediction.trace
        return one if trace is None or convolves(trace) else one.run

    def _replayed(self, one: Combination, run: Traced) -> Traced:
        """The run under another setting of the allocator."""
        assert run.prediction.trace is not None
        conf = with_overrides(self.job, one.changes).allocator_conf or ""
        found = run.under.get(conf) or predict_trace(run.prediction.trace, allocator_conf=conf)
        trace = run.prediction.trace.changed(allocator_conf=conf)
        return dataclasses.replace(run, prediction=dataclasses.replace(found, trace=trace))
