"""What a combination would take, roughly, from the trace of another: only to say what to trace next.

Runs that differ in batch, sizes, allocator setting or optimizer are alike. Blocks of the batch grow with it; those of
the weights do not; optimizer state is what an option says is left of it; expandable segments reserve what is
allocated. Whatever is printed has been traced as it is.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import log
from typing import Any

from vramcast.features.advise.combination import Combination
from vramcast.features.advise.option import Option
from vramcast.jobs.schema import Job
from vramcast.memory.prediction import Prediction
from vramcast.trace import StepTrace
from vramcast.trace.schema import ALLOC, FREE, KINDS

_GROWS = tuple(KINDS.index(kind) for kind in ("saved activations", "temporaries", "inputs", "outputs/other"))
_OTHERWISE = log(2)
"""A run that accumulates gradients and one that does not are as far apart as a batch and half of it."""
Corners = list[tuple[int, int]]
"""See corners_of."""
_STATE, _GRADIENTS = KINDS.index("optimizer state"), KINDS.index("gradients")


@dataclass(slots=True)
class _Run:
    """A real trace."""

    combination: Combination
    batch: int
    accumulates: bool
    prediction: Prediction
    trace: StepTrace
    state_bytes: int
    gradients_bytes: int
    """Free during the forward pass where nothing is accumulated."""
    corners: dict[tuple[int, float] | None, Corners] = field(default_factory=dict)
    """Corners by what is thinned out."""

    def allocated(self, scale: float, thinned: tuple[int, float] | None = None) -> int:
        """The highest level with activations `scale` times as large, and tensors of a certain width thinned out."""
        if thinned not in self.corners:
            self.corners[thinned] = corners_of(self.trace, thinned)
        return max(fixed + round(growing * scale) for growing, fixed in self.corners[thinned])


class Estimates:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._runs: dict[tuple[str, ...], list[_Run]] = {}
        self._expandable_shares: dict[tuple[str, ...], float] = {}
        self.refused: dict[frozenset[str], str] = {}
        """Texts of options that the model cannot do together → why."""
        self._known: dict[tuple[Any, ...], int | None] = {}
        """Estimates by all that they depend on, until something new is learnt."""

    def knows(self, combination: Combination) -> bool:
        """Whether a run like it was traced, or is known to be impossible."""
        return combination.traced_knobs in self._runs or self.is_refused(combination)

    def is_refused(self, combination: Combination) -> bool:
        return bool(self.refused) and any(refused <= combination.texts for refused in self.refused)

    def refuse(self, combination: Combination, why: str) -> None:
        """Blame the sizes if the model may not take them, or else the options that change the run; both of two options
        where each works alone."""
        sizes = [
            option.text for option in combination.options if option.activations_ratio != 1 or option.thinned is not None
        ]
        kinds = [option.text for option in combination.traced]
        optimizers = [option.text for option in combination.options if option.knob == "optimizer"]
        self._known.clear()
        self.refused[frozenset(sizes or [*kinds, *optimizers] or [combination.text])] = why

    def learn(self, combination: Combination, prediction: Prediction, corners: Corners | None = None) -> None:
        """Take in a real trace; `corners` are its corners where they were worked out already."""
        self._known.clear()
        if prediction.trace is None:
            return
        if combination.run != combination:
            if combination.expandable:
                self._learn_expandable(combination, prediction)
            return
        run = _Run(
            combination=combination,
            batch=combination.batch(self._job),
            accumulates=combination.accumulation(self._job) > 1,
            prediction=prediction,
            trace=prediction.trace,
            state_bytes=_held_at_end(prediction.trace, _STATE),
            gradients_bytes=_held_at_end(prediction.trace, _GRADIENTS),
        )
        if corners is not None:
            run.corners[None] = corners
        self._runs.setdefault(combination.traced_knobs, []).append(run)

    def device_bytes(
        self, combination: Combination, like: Combination | None = None, at_batch: int | None = None
    ) -> int | None:
        """None: the model cannot do that, or nothing like it was traced. `like`: take the traces of that instead."""
        if self.is_refused(combination):
            return None
        knobs = (like or combination).traced_knobs
        batch = (at_batch or combination.batch(self._job)) * combination.activations_ratio
        accumulates = combination.accumulation(self._job) > 1
        key = (
            knobs,
            combination.traced_knobs,
            batch,
            accumulates,
            combination.state_ratio,
            combination.thinned,
            combination.expandable,
        )
        if key not in self._known:
            if knobs in self._runs:
                self._known[key] = self._like(self._runs[knobs], combination, batch, accumulates)
            else:
                self._known[key] = self._by_each(combination) if like is None and len(combination.traced) > 1 else None
        return self._known[key]

    def _like(self, runs: list[_Run], combination: Combination, batch: float, accumulates: bool) -> int:
        """Estimate from the nearest run."""
        run = min(
            runs,
            key=lambda run: (
                run.combination.thinned != combination.thinned,
                run.combination.state_ratio != combination.state_ratio,
                abs(log(run.batch * run.combination.activations_ratio / batch))
                + _OTHERWISE * (run.accumulates != accumulates),
            ),
        )
        here = run.batch * run.combination.activations_ratio
        thinned = None if run.combination.thinned == combination.thinned else _thinned(run.combination, combination)
        before, after = run.allocated(1.0), run.allocated(batch / here, thinned)
        if combination.state_ratio != run.combination.state_ratio:
            after += round(self._state_bytes(run) * (combination.state_ratio - run.combination.state_ratio))
        if accumulates != run.accumulates:
            after += run.gradients_bytes if accumulates else -run.gradients_bytes
        lost = max(0, run.prediction.peak_reserved_bytes - before)  # to rounding and fragmentation
        lost = round(
            lost * after / max(1, before) * (self._expandable_share(combination) if combination.expandable else 1)
        )
        return after + lost + run.prediction.context_bytes

    def _learn_expandable(self, combination: Combination, prediction: Prediction) -> None:
        """Learn how much of what fragmentation wastes is still wasted with expandable segments."""
        for run in self._runs.get(combination.traced_knobs, ()):
            if run.combination == combination.run:
                before = run.allocated(1.0)
                lost = max(1, run.prediction.peak_reserved_bytes - before)
                share = max(0.0, min(1.0, (prediction.peak_reserved_bytes - before) / lost))
                self._expandable_shares[combination.traced_knobs] = share

    def _expandable_share(self, combination: Combination) -> float:
        """The share of runs like it, or else the last one seen."""
        latest = next(reversed(self._expandable_shares.values()), 0.0)
        return self._expandable_shares.get(combination.traced_knobs, latest)

    def _by_each(self, combination: Combination) -> int | None:
        """Estimate several options that were not traced together: what was traced with the most of them, as if each
        of the others took its share of it."""
        plain = Combination(combination.untraced)
        base = self.device_bytes(plain, Combination(()))
        if base is None:
            return None
        together = self._most_together(combination)
        size = float(self.device_bytes(plain, Combination(together)) or base)
        for option in combination.traced:
            if option in together:
                continue
            alone = self.device_bytes(plain, Combination((option,)))
            if alone is None:
                return None
            size *= alone / base
        return round(size)

    def _most_together(self, combination: Combination) -> tuple[Option, ...]:
        """The most of its options that were traced together."""
        traced = (run.combination.traced for runs in self._runs.values() for run in runs)
        within = (options for options in traced if set(options) <= set(combination.traced))
        return max(within, key=len, default=())

    def _state_bytes(self, run: _Run) -> int:
        """State of the optimizer that the job names."""
        if run.combination.state_ratio > 0:
            return round(run.state_bytes / run.combination.state_ratio)
        others = (other for runs in self._runs.values() for other in runs if other.combination.state_ratio == 1)
        return max((other.state_bytes for other in others), default=0)


def _thinned(run: Combination, combination: Combination) -> tuple[int, float] | None:
    """(width, share) that turns the tensors of `run` into those of `combination`, where one of the two makes them
    smaller."""
    if combination.thinned is not None:
        return combination.thinned
    assert run.thinned is not None
    width, left = run.thinned
    return width, 1 / left


def _held_at_end(trace: StepTrace, kind: int) -> int:
    rows = zip(trace.requested_bytes, trace.kind, trace.died_event, strict=True)
    return sum(size for size, block_kind, died in rows if block_kind == kind and died < 0)


def corners_of(trace: StepTrace, thinned: tuple[int, float] | None = None) -> Corners:
    """(what grows, what does not) at the moments that are the highest for some batch: a convex line, by what grows."""
    grows = [
        kind in _GROWS and trace.phases[phase] != "optimizer"
        for kind, phase in zip(trace.kind, trace.phase, strict=True)
    ]
    sizes = trace.requested_bytes
    if thinned is not None:
        width, left = thinned
        wide = {number for number, shape in enumerate(trace.shapes) if shape.endswith(f", {width}]")}
        rows = zip(sizes, trace.shape, grows, strict=True)
        sizes = array("q", [round(size * left) if grow and shape in wide else size for size, shape, grow in rows])
    growing = fixed = 0
    most: dict[int, int] = {}
    for code, block in zip(trace.event_kind, trace.event_arg, strict=True):
        if code == ALLOC:
            if grows[block]:
                growing += sizes[block]
            else:
                fixed += sizes[block]
            if most.get(growing, -1) < fixed:
                most[growing] = fixed
        elif code == FREE:
            if grows[block]:
                growing -= sizes[block]
            else:
                fixed -= sizes[block]
    corners: list[tuple[int, int]] = []
    for x, y in sorted(most.items()):
        while len(corners) > 1 and _below(corners[-2], corners[-1], (x, y)):
            corners.pop()
        corners.append((x, y))
    return corners


def _below(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    """`b` lies under the line from `a` to `c`, or on it."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])
