"""The fewest cards of a kind that hold a job, its model sharded over them by FSDP.

Small models with the same layers are traced first: what a layer adds, and what is divided by the number of cards, give
a number to begin with. What is shown has been traced in full, and so has the next smaller number where the estimate
leaves it open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.base.errors import CannotPredict, VramcastError
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.jobs.stage_layers import layer_count
from vramcast.memory import Prediction
from vramcast.timing import StepTime

EXPANDABLE = "expandable_segments:True"
PER_NODE = 8
COUNTS = (*range(1, PER_NODE + 1), *range(2 * PER_NODE, 8 * PER_NODE + 1, PER_NODE), 96, 128, 192, 256, 384, 512, 1024)
"""Any number of cards of one machine, then whole machines."""
_FEW, _MORE, _MANY = 4, 8, 1024
"""Layers of the two small models, and cards enough that what is divided by their number hardly counts."""
_CERTAINLY_TOO_MUCH = 1.1
"""A number of cards whose estimate is this much above what there is need not be traced."""
_STEPS = 3
"""As many as `predict` traces, so that its figures are the same."""


@dataclass(frozen=True, slots=True)
class Fewest:
    """One way to train on as few cards as possible."""

    count: int
    changes: Mapping[str, Any]
    """Dotted key → value, for --set."""
    text: str
    prediction: Prediction
    time: StepTime | None
    next_smaller: int | None
    """The next smaller number, which does not hold it."""
    next_smaller_bytes: int | None
    """What that would allocate at the peak: traced, or the estimate."""
    was_traced: bool

    @property
    def nodes(self) -> int:
        return -(-self.count // PER_NODE)


@dataclass(frozen=True, slots=True)
class FewestCards:
    gpu: GpuSpec
    ways: tuple[Fewest, ...]
    """Fewest cards first."""
    traces: int


def fewest_cards(
    loaded: LoadedJob, gpu: GpuSpec, *, workers: int, progress: Callable[[str], None] = lambda text: None
) -> FewestCards:
    """Without and with activation checkpointing, each on as few cards as hold it. The batch of a card stays."""
    job = loaded.job
    if job.gpus.tensor > 1 or job.gpus.pipeline > 1 or job.task != "training":
        raise CannotPredict("--fewest-gpus: training is sharded by FSDP alone; leave tensor and pipeline parallel out")
    schemes = {"without checkpointing": "none", "with checkpointing": "all"}
    if job.checkpointing.scope != "none":
        schemes = {"as it is checkpointed": ""}
    with Runs(gpu, steps=_STEPS, workers=workers, progress=progress, like=job) as runs:
        searches = [_Search(job, gpu, runs, scheme, text) for text, scheme in schemes.items()]
        wishes = [wish for search in searches for wish in search.small_wishes()]
        small = iter(runs.trace(wishes))
        for search in searches:
            search.learn([_or_raise(next(small)) for _ in search.small_wishes()])
        found = [way for search in searches if (way := search.run()) is not None]
        traces = runs.n_traced
    return FewestCards(gpu, tuple(sorted(found, key=lambda way: way.count)), traces)


class _Search:
    """The fewest cards under one way of checkpointing."""

    def __init__(self, job: Job, gpu: GpuSpec, runs: Runs, checkpointing: str, text: str) -> None:
        self._job, self._gpu, self._runs, self._text = job, gpu, runs, text
        self._changes: dict[str, Any] = {"checkpointing": checkpointing} if checkpointing else {}
        self._layers = layer_count(next(iter(job.components.values())))
        self._constant = self._per_layer = 0.0
        self._divided = self._divided_per_layer = 0.0

    def changes(self, count: int) -> dict[str, Any]:
        sharded = {"gpus.count": count, "gpus.per_node": min(count, PER_NODE), "gpus.strategy": "fsdp"}
        return {**sharded, **self._changes}

    def small_wishes(self) -> list[Wish]:
        """Two small models on very many cards, and both on few."""
        return [self._wish(count, layers) for count in (_MANY, PER_NODE) for layers in (_FEW, _MORE)]

    def _wish(self, count: int, layers: int | None = None) -> Wish:
        changes = self.changes(count)
        if layers is not None:
            name, component = next(iter(self._job.components.items()))
            changes[f"components.{name}.config"] = {**component.config, "num_hidden_layers": layers}
        text = f"{layers or self._layers} layers on {count} cards, {self._text}"
        return Wish(with_overrides(self._job, changes), text, under=(EXPANDABLE,))

    def learn(self, small: list[Traced]) -> None:
        """What does not depend on the number of cards, and what is divided by it, of a model of n layers."""
        few, more, few_here, more_here = (traced.prediction.peak_allocated_bytes for traced in small)
        share = 1 / PER_NODE - 1 / _MANY
        divided_few, divided_more = (few_here - few) / share, (more_here - more) / share
        self._divided_per_layer = max(0.0, (divided_more - divided_few) / (_MORE - _FEW))
        self._divided = divided_few - _FEW * self._divided_per_layer
        whole_few, whole_more = few - divided_few / _MANY, more - divided_more / _MANY
        self._per_layer = max(0.0, (whole_more - whole_few) / (_MORE - _FEW))
        self._constant = whole_few - _FEW * self._per_layer

    def estimate(self, count: int) -> float:
        """Bytes allocated at the peak on each of so many cards."""
        divided = self._divided + self._layers * self._divided_per_layer
        return self._constant + self._layers * self._per_layer + divided / count

    def run(self) -> Fewest | None:
        room = self._gpu.pytorch_bytes
        at = next((i for i, count in enumerate(COUNTS) if self.estimate(count) <= room), None)
        if at is None:
            return None
        traced = self._traced(at)
        if fitting(traced) is not None:
            while at > 0:
                below = COUNTS[at - 1]
                if self.estimate(below) > _CERTAINLY_TOO_MUCH * room:
                    return self._way(at, traced, int(self.estimate(below)), was_traced=False)
                smaller = self._traced(at - 1)
                if fitting(smaller) is None:
                    return self._way(at, traced, smaller.prediction.peak_allocated_bytes, was_traced=True)
                at, traced = at - 1, smaller
            return self._way(at, traced, None, was_traced=False)
        while at + 1 < len(COUNTS):
            before, at = traced, at + 1
            traced = self._traced(at)
            if fitting(traced) is not None:
                return self._way(at, traced, before.prediction.peak_allocated_bytes, was_traced=True)
        return None

    def _traced(self, at: int) -> Traced:
        return _or_raise(self._runs.trace([self._wish(COUNTS[at])])[0])

    def _way(self, at: int, traced: Traced, smaller_bytes: int | None, *, was_traced: bool) -> Fewest:
        prediction, conf = fitting(traced) or (traced.prediction, None)
        changes = self.changes(COUNTS[at])
        if conf is not None:
            changes["allocator_conf"] = conf
        return Fewest(
            count=COUNTS[at], changes=changes, text=self._text, prediction=prediction, time=traced.time,
            next_smaller=COUNTS[at - 1] if at else None, next_smaller_bytes=smaller_bytes, was_traced=was_traced,
        )  # fmt: skip


def fitting(traced: Traced) -> tuple[Prediction, str | None] | None:
    """The run as it is, or under expandable segments, where it fits; and the setting."""
    if traced.prediction.fits:
        return traced.prediction, None
    other = traced.under.get(EXPANDABLE)
    return (other, EXPANDABLE) if other is not None and other.fits else None


def _or_raise(traced: Traced | VramcastError) -> Traced:
    if isinstance(traced, VramcastError):
        raise traced
    return traced
