"""A combination of options: at most one of each knob."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log, prod
from typing import Any, Generic, TypeVar

from vramcast.features.advise.knob_names import KNOBS
from vramcast.features.advise.option import CHANGES_TRAINING, SAFE, Option, go_together
from vramcast.jobs.schema import Job

T = TypeVar("T")
_ALIKE = 1.05
"""Nobody changes more for a smaller difference in time."""


class once(Generic[T]):
    """functools.cached_property without its lock (up to Python 3.11), which takes longer than what is worked out here
    for thousands of combinations."""

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work = work

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self._name] = self._work(instance)
        return value


@dataclass(frozen=True)
class Combination:
    options: tuple[Option, ...]

    def __hash__(self) -> int:
        return self._hash

    @once
    def _hash(self) -> int:
        return hash(self.options)

    @once
    def text(self) -> str:
        return " + ".join(option.text for option in self.options)

    @once
    def texts(self) -> frozenset[str]:
        return frozenset(option.text for option in self.options)

    @once
    def run(self) -> Combination:
        """The same without a setting of the allocator, which does not change the run."""
        return self.without("allocator")

    @once
    def changes(self) -> dict[str, Any]:
        return {key: value for option in self.options for key, value in option.changes.items()}

    @once
    def risk(self) -> int:
        return max((option.risk for option in self.options), default=SAFE)

    @once
    def sacrifices(self) -> int:
        """How many of the options change the training."""
        return sum(option.risk >= CHANGES_TRAINING for option in self.options)

    @once
    def rounds_weights(self) -> bool:
        """Whether frozen weights are rounded to 4 bits."""
        return any(key.endswith(".quantization") for key in self.changes)

    @once
    def in_code(self) -> int:
        """How many of the options must be written into the training code."""
        return sum(not option.in_config for option in self.options)

    @once
    def time(self) -> float:
        """Time of a sample relative to the job as it is, by rule of thumb."""
        return prod(option.time for option in self.options)

    @once
    def sample_share(self) -> float:
        return prod(option.sample_share for option in self.options)

    @once
    def by_rule(self) -> tuple[Option, ...]:
        """The options whose time is not predicted."""
        return tuple(option for option in self.options if option.by_rule)

    @once
    def state_ratio(self) -> float:
        return prod(option.state_ratio for option in self.options)

    @once
    def activations_ratio(self) -> float:
        return prod(option.activations_ratio for option in self.options)

    @once
    def thinned(self) -> tuple[int, float] | None:
        return next((option.thinned for option in self.options if option.thinned is not None), None)

    @once
    def guess(self) -> float:
        """Share of memory that the options which need a trace are thought to leave, before there is one."""
        return prod(option.guess for option in self.options)

    @once
    def traced(self) -> tuple[Option, ...]:
        """The options that need a trace of their own."""
        return tuple(option for option in self.options if option.traced)

    @once
    def untraced(self) -> tuple[Option, ...]:
        return tuple(option for option in self.options if not option.traced)

    @once
    def traced_knobs(self) -> tuple[str, ...]:
        return tuple(option.text for option in self.traced)

    @once
    def expandable(self) -> bool:
        return "expandable_segments:True" in str(self.changes.get("allocator_conf"))

    def with_option(self, option: Option) -> Combination:
        """The same with `option` in place of the one its knob had, in the order of the knobs."""
        options = (*self.without(option.knob).options, option)
        return Combination(tuple(sorted(options, key=lambda chosen: KNOBS.index(chosen.knob))))

    def without(self, knob: str) -> Combination:
        return Combination(tuple(option for option in self.options if option.knob != knob))

    def batch(self, job: Job) -> int:
        if "gpus.global_batch" in self.changes:
            return int(self.changes["gpus.global_batch"]) // job.gpus.count
        return int(self.changes.get("sizes.batch", job.effective_sizes["batch"]))

    def accumulation(self, job: Job) -> int:
        return int(self.changes.get("accumulation", job.accumulation))


def about(time: float) -> int:
    """The same number for times that hardly differ."""
    return round(log(time) / log(_ALIKE)) if time > 0 else 0


def combinations(options: Mapping[str, list[Option]], most_risk: int) -> Iterator[Combination]:
    """All combinations up to a risk, including the job as it is."""
    ways: list[list[Option | None]] = [
        [None, *(option for option in of_knob if option.risk <= most_risk)] for of_knob in options.values()
    ]
    for chosen in itertools.product(*ways):
        taken = tuple(option for option in chosen if option is not None)
        if go_together(taken):
            yield Combination(taken)
