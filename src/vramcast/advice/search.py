"""Which combinations to trace: estimates order them, and what is kept has been traced and replayed as it is."""

from __future__ import annotations

import dataclasses
import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vramcast.advice.combination import Combination, combinations
from vramcast.advice.estimate import Estimates
from vramcast.advice.front import FASTER, pareto, spread
from vramcast.advice.option import CHANGES_TRAINING, LAST_RESORT, USUAL, Option
from vramcast.advice.pace import Pace
from vramcast.advice.runs import Runs, Traced, Wish
from vramcast.advice.subset import Subsets
from vramcast.errors import UsageError, VramcastError
from vramcast.jobs.fields import LARGEST_SIZE
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory import Prediction
from vramcast.memory import predict as predict_trace
from vramcast.memory.cards import MARGIN, with_margin
from vramcast.memory.replay import convolves

OBJECTIVES = ("throughput", "memory", "closest")

_LEVELS = (USUAL, CHANGES_TRAINING, LAST_RESORT)
_SLOW = 1.5
"""What takes longer than this is left until nothing else does."""
_SHOWN = 3
_FRONT = 6
"""Points of the front that are looked for."""
_FRONT_TRACES, _MANY_EVENTS = 4, 15_000
"""Runs that are traced for it; half of them where a trace is longer than that."""
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
    _reach: tuple[int, bool] = (USUAL, False)
    """The risk that is taken, and whether what takes much longer is looked at."""
    _within: dict[tuple[int, bool], list[Combination]] = field(default_factory=dict)
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
        self.estimates.learn(one, traced.prediction)

    def best(self) -> list[Combination]:
        """The best few. What risks more, or takes much longer, is looked at only where less does not do, but for the
        least memory."""
        for risk in _LEVELS[1:] if self.objective == "memory" else _LEVELS:
            for slow in (True,) if self.objective == "memory" else (False, True):
                self._reach = (risk, slow)
                chosen = self._choose(self._estimated())
                if chosen:
                    return chosen
        return []

    def refine(self, chosen: list[Combination]) -> list[Combination]:
        """The first that checkpoints every block checkpoints only as many as the memory asks for."""
        for place, one in enumerate(chosen):
            plain = one.without("checkpointing")
            batch = one.batch(self.job)
            alike = [other for other in self.found if self._alike(other, plain)]
            kept = min(alike, key=lambda other: abs(other.batch(self.job) - batch), default=None)
            every = next((option for option in one.options if option.changes == {"checkpointing": "all"}), None)
            if every is None or kept is None:
                continue
            better = self._subset(one, plain, kept, every)
            if better is not None:
                rest = [other for other in chosen[place + 1 :] if self.time(other) <= self.time(better) * FASTER]
                return [*chosen[:place], better, *rest]
            break
        return chosen

    def _alike(self, one: Combination, other: Combination) -> bool:
        """They keep the same activations for a sample."""
        return (
            one.traced_knobs == other.traced_knobs
            and one.activations_ratio == other.activations_ratio
            and one.thinned == other.thinned
        )

    def _subset(self, one: Combination, plain: Combination, kept: Combination, every: Option) -> Combination | None:
        left = self.found[one].prediction
        comfortable = with_margin(left.device_bytes) <= self.limit_bytes

        def fits(traced: Traced) -> bool:
            found = traced.prediction
            return found.fits and (not comfortable or with_margin(found.device_bytes) <= self.limit_bytes)

        room_bytes = round(self.limit_bytes / (1 + MARGIN)) if comfortable else self.limit_bytes
        subset = Subsets(self.runs).best(
            with_overrides(self.job, plain.changes), fits, room_bytes - left.context_bytes, self.found[kept],
            kept.batch(self.job), self.found[one],
        )  # fmt: skip
        if subset is None or len(subset.names) == subset.of:
            return None
        time = min(subset.time, every.time)
        slower = f"{time - 1:.0%}".replace("%", " %")
        option = Option(
            knob=every.knob,
            text=f"checkpoint {len(subset.names)} of {subset.of} blocks",
            changes=subset.changes,
            cost=f"a step takes about {slower} longer, by what these blocks compute; the result is the same",
            time=time,
            traced=True,
        )
        better = Combination(tuple(option if before is every else before for before in one.options))
        self.keep(better, subset.traced)
        return better

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
        trace = self.asked.prediction.trace
        few = trace is not None and trace.n_events > _MANY_EVENTS
        for _ in range(-(-_FRONT_TRACES // self.runs.workers) // (2 if few else 1)):
            fitting = [one for one in self._estimated() if self._may_fit(one)]
            front = spread(pareto(fitting, self._size, self.time), self._size, _FRONT)
            wanted = [one for one in front if one not in self.found]
            if not wanted:
                break
            self._trace(wanted[: self.runs.workers])

    def front(self) -> list[Combination]:
        """Of what was traced and fits: what nothing else beats in both memory and speed."""
        fitting = [one for one in self.found if self.prediction(one).fits]
        size = self._size
        return spread(pareto(fitting, size, self.time), size, _FRONT)

    def smallest(self) -> Combination:
        """What needs the least, traced: the least by estimate, until its real figures are the least."""
        self._reach = (_LEVELS[-1], True)
        estimated = self._estimated()
        for _ in range(_TRIES):
            possible = [one for one in estimated if one in self.found or not self.estimates.is_refused(one)]
            ordered = sorted(possible, key=lambda one: (self._size(one), len(one.options)))
            if not ordered or ordered[0] in self.found:
                break
            self._trace([one for one in ordered[: self.runs.workers] if one not in self.found])
        return min(self.found, key=lambda one: (self._size(one), len(one.options)))

    def _estimated(self) -> list[Combination]:
        """Those within reach of which something is known, after what is needed for that was traced."""
        risk, slow = self._reach
        options = {
            knob: [option for option in of_knob if slow or option.time <= _SLOW]
            for knob, of_knob in self.options.items()
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
            if any(self.time(one) > self.time(other) * FASTER for other in chosen) or not self._may_fit(one):
                continue
            now = self._rank(one)
            if now > place:
                heapq.heappush(queue, (now, number))
            elif one in self.found:
                chosen.append(one)
            else:
                is_replay = self._run_of(one) in self.found
                self._trace([one] if is_replay else [one, *self._next(estimated, queue, one, len(chosen))])
                if one in self.found and self.prediction(one).fits:
                    heapq.heappush(queue, (self._rank(one), number))
                else:
                    failed += 1
        return chosen

    def _next(
        self, estimated: Sequence[Combination], queue: Sequence[tuple[tuple[float, ...], int]], one: Combination, n: int
    ) -> list[Combination]:
        """What will be wanted after `one` if it fits, for workers that have nothing to do."""
        wanted: list[Combination] = []
        runs = {self._run_of(one)}
        room = min(self.runs.workers - 1, _SHOWN - 1 - n)
        for _, number in sorted(queue) if room > 0 else ():
            other = estimated[number]
            faster = all(self.time(other) <= self.time(before) * FASTER for before in (one, *wanted))
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
        return one.risk, one.sacrifices, tight, self.time(one), changed

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
        for one, traced in zip(wanted, self.runs.trace([self.wish(one, new) for one in wanted]), strict=True):
            if isinstance(traced, VramcastError):
                self.estimates.refuse(one, str(traced))
                continue
            self.keep(one, traced)
            for option in self.options.get("allocator", ()):
                if option.changes["allocator_conf"] in traced.under:
                    under = one.with_option(option)
                    self.keep(under, self._replayed(under, traced))
        for one in new:
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
