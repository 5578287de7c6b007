"""Which combinations to trace: estimates order them, and what is kept has been traced and replayed as it is."""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log

from vramcast.base.errors import UsageError, VramcastError
from vramcast.features.advise.combination import Combination, about, combinations
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
from vramcast.memory.replay import convolves

OBJECTIVES = ("throughput", "memory", "closest")

_SLOW, _VERY_SLOW, _ANY = 1.5, 2.0, float("inf")
"""Combinations that take longer than the first are left until nothing else works; those that take longer than the
second, until smaller samples do not work either."""
_REACHES = (
    (USUAL, _SLOW), (USUAL, _VERY_SLOW), (CHANGES_TRAINING, _SLOW), (USUAL, _ANY), (CHANGES_TRAINING, _ANY),
    (LAST_RESORT, _SLOW), (LAST_RESORT, _ANY),
)  # fmt: skip
"""The risk that is accepted and how long a sample may take, in the order in which they are tried."""
_EVERY = ((CHANGES_TRAINING, _ANY), (LAST_RESORT, _ANY))
"""The same where the least memory is wanted."""
_SHOWN = 3
_FRONT = 6
"""Points of the front that are looked for."""
_FRONT_TRACES, _MANY_EVENTS = 4, 15_000
"""Runs that are traced for the front; half as many where a trace takes long."""
_BEFORE_TIME = 6
"""How many entries of a rank come before the time: risk, changes to the training, whether weights are rounded, changes
to the code beside a smaller sample, how much is left of that, the margin."""
_TRIES = 8
"""How many traces may disappoint before the search gives up on a level of risk."""


@dataclass
class Search:
    job: Job
    runs: Runs
    options: dict[str, list[Option]]
    objective: str
    asked: Traced
    """The job as it is."""
    only_together: frozenset[Option] = frozenset()
    """Options that need too much alone, so that they are not traced without others."""
    combinations: int = 0
    _reach: tuple[int, float] = _REACHES[0]
    """The risk that is accepted, and how long a sample may take, by rule of thumb."""
    _beside: list[tuple[Combination, Callable[[], Traced | VramcastError]]] = field(default_factory=list)
    """Runs that are being traced beside the search."""
    _traced_beside: int = 0
    """Runs of the front that were traced while a process had nothing else to do."""
    _within: dict[tuple[int, float], list[Combination]] = field(default_factory=dict)
    """All combinations within a reach."""
    estimates: Estimates = field(init=False)
    pace: Pace = field(init=False)
    traced: dict[Combination, Traced] = field(default_factory=dict)
    """All that were traced, fitting or not."""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise UsageError(f"--objective {self.objective}: write one of {', '.join(OBJECTIVES)}")
        self.estimates = Estimates(self.job)
        self.pace = Pace(self.job, self.traced)
        self.keep(Combination(()), self.asked)

    @property
    def limit_bytes(self) -> int:
        return self.asked.prediction.limit_bytes

    def prediction(self, combination: Combination) -> Prediction:
        return self.traced[combination].prediction

    def keep(self, combination: Combination, traced: Traced) -> None:
        self.traced[combination] = traced
        self.estimates.learn(combination, traced.prediction, traced.corners)

    def best(self, meanwhile: Callable[[], None] = lambda: None) -> list[Combination]:
        """The best few. Riskier or much slower combinations are considered only where nothing else fits, or for the
        least memory. `meanwhile` is called once runs were traced that estimates are made from."""
        for reach in _EVERY if self.objective == "memory" else _REACHES:
            self._reach = reach
            estimated = self._estimated()
            meanwhile()
            chosen = self._choose(estimated)
            if chosen:
                return chosen
        return []

    def largest_batch(self, combination: Combination, job: Job) -> int | None:
        """The largest batch that `job` (`combination` with an accumulation of its own) is estimated to take."""
        passes = Option(knob="batch", text="", changes={"accumulation": job.accumulation}, cost="")
        accumulates = Combination((*combination.options, passes))

        def size(batch: int) -> int:
            return self.estimates.device_bytes(accumulates, combination, batch) or 0

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
        """Where a trace takes long, trace the front beside the rest of the search."""
        if self.runs.workers > 1 and self._is_long and not self._traced_beside:
            wanted = {self._run_of(combination): combination for combination in reversed(self._wanted_in_front())}
            new = [combination for run, combination in reversed(wanted.items()) if run not in self.traced]
            for combination in new[: self._front_traces]:
                self._beside.append((combination, self.runs.begin(self.wish(self._run_of(combination), [combination]))))
                self._traced_beside += 1

    def expect(self, begun: Iterable[tuple[Combination, Callable[[], Traced | VramcastError]]]) -> None:
        """Runs that are being traced."""
        self._beside.extend(begun)

    def collect(self) -> None:
        """Wait for the runs that were begun, and learn from them."""
        for combination, wait in self._beside:
            self.learn([self._run_of(combination)], [wait()])
            self._replay([combination])
        self._beside.clear()

    @property
    def _front_traces(self) -> int:
        """Runs that may be traced for the front alone."""
        return _FRONT_TRACES // (2 if self._is_long else 1)

    @property
    def _is_long(self) -> bool:
        """Whether a trace takes long."""
        trace = self.asked.prediction.trace
        return trace is not None and trace.n_events > _MANY_EVENTS

    def _wanted_in_front(self) -> list[Combination]:
        """Combinations that were not traced and probably belong to the front; farthest from all traced ones first."""
        fitting = [combination for combination in self._estimated() if self._may_fit(combination)]
        front = spread(pareto(fitting, self._size, self.time), self._size, _FRONT)
        there = [self._size(combination) for combination in self.traced if self.prediction(combination).fits]

        def gap(combination: Combination) -> float:
            return min((abs(log(max(1, self._size(combination)) / size)) for size in there), default=0.0)

        return sorted((combination for combination in front if combination not in self.traced), key=gap, reverse=True)

    def front(self) -> list[Combination]:
        """The combinations that were traced and fit, and that no other beats in both memory and speed."""
        fitting = [combination for combination in self.traced if self.prediction(combination).fits]
        size = self._size
        return spread(pareto(fitting, size, self.time), size, _FRONT)

    def smallest(self) -> Combination:
        """The combination that needs the least, traced: the smallest estimate is traced until its real figures are the
        smallest."""
        self._reach = _REACHES[-1]
        estimated = self._estimated()
        for _ in range(_TRIES):
            possible = [
                combination for combination in estimated if combination in self.traced or self._is_possible(combination)
            ]
            ordered = sorted(possible, key=lambda combination: (self._size(combination), len(combination.options)))
            if not ordered or ordered[0] in self.traced:
                break
            self._trace([combination for combination in ordered[: self.runs.workers] if combination not in self.traced])
        return min(self.traced, key=lambda combination: (self._size(combination), len(combination.options)))

    def fitting(self) -> list[Combination]:
        """The best few of those that were traced and fit."""
        fitting = [combination for combination in self.traced if self.prediction(combination).fits]
        return sorted(fitting, key=self._rank)[:_SHOWN]

    def _estimated(self) -> list[Combination]:
        """The combinations within reach about which something is known, after tracing what that takes."""
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
            if option.traced and option.risk <= risk and option not in self.only_together
        ]
        # A combination that the model refuses is tried again in another way, until something is known.
        while unknown := [combination for combination in alone if not self.estimates.knows(combination)]:
            likely = [self._likely(combination) for combination in unknown]
            self._trace(likely)
            if not any(combination in self.traced or self.estimates.is_refused(combination) for combination in likely):
                break
        return [combination for combination in every if not self.estimates.is_refused(combination)]

    def _likely(self, combination: Combination) -> Combination:
        """The combination with the largest batch that should fit, so that the trace may be an answer at once; where
        none fits, with another optimizer too."""
        batches = sorted(self.options.get("batch", []), key=lambda option: option.time)
        ways = [combination, *(combination.with_option(option) for option in batches)]
        optimizers = [option for option in self.options.get("optimizer", ()) if option.risk <= USUAL]
        asked = Combination(())
        for optimizer in (None, *optimizers):
            for way in sorted(ways, key=lambda way: -way.batch(self.job)):
                full = way if optimizer is None else way.with_option(optimizer)
                guess = self.estimates.device_bytes(Combination(full.untraced), asked)
                if (
                    guess is not None
                    and guess * combination.guess <= self.limit_bytes
                    and not self.estimates.is_refused(full)
                ):
                    return full
        return ways[-1]

    def _choose(self, estimated: Sequence[Combination]) -> list[Combination]:
        """In the order of the objective; after the first, only what is faster than all before it.

        An estimate gives a combination its place; when its turn comes it is traced, and takes the place that it has
        by its real figures.
        """
        queue = [(self._rank(combination), number) for number, combination in enumerate(estimated)]
        heapq.heapify(queue)
        chosen: list[Combination] = []
        failed, again = 0, set[int]()
        while queue and len(chosen) < _SHOWN and failed < _TRIES:
            place, number = heapq.heappop(queue)
            combination = estimated[number]
            if chosen and self.objective == OBJECTIVES[0] and combination.sacrifices > chosen[0].sacrifices:
                continue
            if any(self.time(combination) > self.time(other) * FASTER for other in chosen) or not self._may_fit(
                combination
            ):
                continue
            now = self._rank(combination)
            if now > place:
                heapq.heappush(queue, (now, number))
            elif combination in self.traced:
                simpler = [one for one in self._simpler(estimated, combination, now) if one not in again]
                if not simpler:
                    chosen.append(combination)
                    continue
                again.update(simpler)
                for before in simpler:
                    heapq.heappush(queue, (self._rank(estimated[before]), before))
                heapq.heappush(queue, (now, number))
            elif not self._has_equal(combination):
                self._trace([combination, *self._work_beside(estimated, queue, combination, len(chosen))])
                if combination in self.traced and self.prediction(combination).fits:
                    heapq.heappush(queue, (self._rank(combination), number))
                else:
                    failed += 1
        return chosen

    def _simpler(
        self, estimated: Sequence[Combination], combination: Combination, place: tuple[float, ...]
    ) -> Iterator[int]:
        """Those that do without some of its changes, and come before it by what is known by now: what was thought too
        large when the queue was made may fit as well."""
        for number, other in enumerate(estimated):
            may_do = other.texts < combination.texts and other not in self.traced and self._may_fit(other)
            if may_do and self._rank(other) < place:
                yield number

    def _has_equal(self, combination: Combination) -> bool:
        """Whether a traced combination is as good and about as fast, with no more changes, so that a long trace would
        not pay."""
        place = self._rank(combination)[:_BEFORE_TIME]
        return (
            self._is_long
            and self.objective == OBJECTIVES[0]
            and any(
                self.prediction(other).fits
                and self._rank(other)[:_BEFORE_TIME] <= place
                and self.time(combination) > self.time(other) * FASTER
                and self._changed(other) <= self._changed(combination)
                for other in self.traced
            )
        )

    def _work_beside(
        self,
        estimated: Sequence[Combination],
        queue: Sequence[tuple[tuple[float, ...], int]],
        combination: Combination,
        n: int,
    ) -> list[Combination]:
        """What an idle process can trace beside `combination`."""
        if self._run_of(combination) in self.traced or self.runs.workers == 1:
            return []
        wanted = self._next(estimated, queue, combination, n)
        if not wanted and self._traced_beside < self._front_traces:
            wanted = [other for other in self._wanted_in_front() if self._run_of(other) != self._run_of(combination)][
                :1
            ]
            self._traced_beside += len(wanted)
        return wanted

    def _next(
        self,
        estimated: Sequence[Combination],
        queue: Sequence[tuple[tuple[float, ...], int]],
        combination: Combination,
        n: int,
    ) -> list[Combination]:
        """What will be wanted after `combination` if it fits, for idle workers."""
        wanted: list[Combination] = []
        runs = {self._run_of(combination)}
        room = min(self.runs.workers - 1, _SHOWN - 1 - n)
        fitting = [(self._rank(other), other) for other in self.traced if self.prediction(other).fits]
        for place, number in sorted(queue) if room > 0 else ():
            other = estimated[number]
            before = (combination, *wanted, *(earlier for rank, earlier in fitting if rank < place))
            faster = all(self.time(other) <= self.time(earlier) * FASTER for earlier in before)
            run = self._run_of(other)
            if faster and run not in runs and run not in self.traced and self._may_fit(other):
                runs.add(run)
                wanted.append(other)
                if len(wanted) == room:
                    break
        return wanted

    def _rank(self, combination: Combination) -> tuple[float, ...]:
        device_bytes = self._size(combination)
        tight = self.asked.prediction.margin.upper(device_bytes) > self.limit_bytes
        changed = len(combination.options)
        if self.objective == "memory":
            return device_bytes, self.time(combination), changed
        if self.objective == "closest":
            return changed, combination.risk, self.time(combination), tight
        share = combination.sample_share
        in_code = combination.in_code if share < 1 else 0
        changes = (combination.risk, combination.sacrifices, combination.rounds_weights)
        time = self.time(combination)
        return *changes, in_code, -share, tight, about(time), *self._changed(combination), time

    def _changed(self, combination: Combination) -> tuple[int, int]:
        """How much a user has to change for it: options, and then passes, of which a larger batch needs fewer."""
        return len(combination.options), combination.accumulation(self.job)

    def time(self, combination: Combination) -> float:
        """Time of a sample relative to the job as it is: predicted, or estimated."""
        return self.pace.time(combination)

    def _size(self, combination: Combination) -> int:
        """Memory on the card: predicted, or estimated."""
        if combination in self.traced:
            return self.prediction(combination).device_bytes
        return self.estimates.device_bytes(combination) or 0

    def _may_fit(self, combination: Combination) -> bool:
        if combination in self.traced:
            return self.prediction(combination).fits
        return self._is_possible(combination) and self._size(combination) <= self.limit_bytes

    def _is_possible(self, combination: Combination) -> bool:
        if self.estimates.is_refused(combination):
            return False
        alone = bool(self.only_together) and not self.only_together.isdisjoint(combination.options)
        return not alone or self.estimates.device_bytes(combination) is not None

    def _trace(self, combinations: Iterable[Combination]) -> None:
        """Trace those that were not traced yet."""
        new = [combination for combination in combinations if combination not in self.traced]
        wanted = list(
            dict.fromkeys(
                self._run_of(combination) for combination in new if self._run_of(combination) not in self.traced
            )
        )
        self.learn(wanted, self.runs.trace([self.wish(combination, new) for combination in wanted]))
        self.collect()
        self._replay(new)

    def learn(self, runs: Sequence[Combination], results: Sequence[Traced | VramcastError]) -> None:
        for run, traced in zip(runs, results, strict=True):
            if isinstance(traced, VramcastError):
                self.estimates.refuse(run, str(traced))
                continue
            self.keep(run, traced)
            for option in self.options.get("allocator", ()):
                if option.changes["allocator_conf"] in traced.under:
                    under = run.with_option(option)
                    self.keep(under, self._replayed(under, traced))

    def _replay(self, combinations: Iterable[Combination]) -> None:
        """Replay those whose run was traced, under their setting of the allocator."""
        for combination in combinations:
            run = self.traced.get(self._run_of(combination))
            if combination not in self.traced and run is not None:
                self.keep(combination, self._replayed(combination, run))

    def wish(self, combination: Combination, wanted: Iterable[Combination] = ()) -> Wish:
        """The request to trace a run, with those of `wanted` that only differ in the setting of the allocator."""
        alike = [
            other.changes["allocator_conf"]
            for other in wanted
            if other != combination and self._run_of(other) == combination
        ]
        settings = self.options.get("allocator", ()) if self._run_of(combination) == combination.run else ()
        optional = next((option.changes["allocator_conf"] for option in settings), "")
        return Wish(
            with_overrides(self.job, combination.changes),
            combination.text or "the job as it is",
            under=tuple(alike),
            optional=optional if optional not in alike else "",
            time_copies=all(option.knob != "offload" for option in combination.options),
        )

    def _run_of(self, combination: Combination) -> Combination:
        """The combination whose run stands for it: the allocator's setting changes nothing, except for convolutions
        that look for free memory."""
        trace = self.asked.prediction.trace
        return combination if trace is None or convolves(trace) else combination.run

    def _replayed(self, combination: Combination, run: Traced) -> Traced:
        """The run under another setting of the allocator."""
        assert run.prediction.trace is not None
        conf = with_overrides(self.job, combination.changes).allocator_conf or ""
        prediction = run.under.get(conf) or predict_trace(run.prediction.trace, allocator_conf=conf)
        trace = run.prediction.trace.changed(allocator_conf=conf)
        return dataclasses.replace(run, prediction=dataclasses.replace(prediction, trace=trace))
