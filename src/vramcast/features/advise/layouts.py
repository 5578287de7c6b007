"""The fastest way to train a job on so many cards: how the model is divided, and whether activations are kept.

The samples of an optimizer step stay what they are. Two small models with the same layers are traced for each way:
memory and time grow evenly with the layers, which gives an order. What is shown has been run in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.base.errors import CannotPredict, VramcastError
from vramcast.features.advise.fewest import EXPANDABLE, fitting
from vramcast.features.advise.language_models import rough_parameters
from vramcast.features.advise.layout import Layout, can_be_divided, layouts
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.jobs.stage_layers import layer_count
from vramcast.memory import Prediction

_FEW, _MORE = 4, 8
"""Layers of the two small models; of a pipeline, half of those of each stage. With fewer the peak is elsewhere."""
_FEW_STEPS = 2
"""Steps of a small model: in the second there is optimizer state."""
_STEPS = 3
"""As many as `predict` traces, so that its figures are the same."""
_SHOWN = 3
_MOST_TRIED = 6
"""Full runs that are made at most: those that come first by the estimate may turn out not to fit."""
_CERTAINLY_TOO_MUCH = 1.1
_FAR_TOO_MUCH, _EASILY = 1.5, 0.9
"""Of what there is: where FSDP without checkpoints needs so much, no way does without them; or none needs them."""


@dataclass(frozen=True, slots=True)
class FastLayout:
    layout: Layout
    prediction: Prediction
    step_seconds: float
    samples: int
    """Of an optimizer step, on all cards."""

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.step_seconds

    @property
    def changes(self) -> Mapping[str, Any]:
        return self.layout.changes


@dataclass(frozen=True, slots=True)
class FastestLayouts:
    gpu: GpuSpec
    count: int
    ways: tuple[FastLayout, ...]
    """Fastest first; all of them fit."""
    considered: int
    traces: int
    refused: Mapping[str, str]
    """What could not be tried, and why."""


def fastest_layouts(
    loaded: LoadedJob, gpu: GpuSpec, *, workers: int, progress: Callable[[str], None] = lambda text: None
) -> FastestLayouts:
    """The fastest ways on as many cards as the job has."""
    job = loaded.job
    if not can_be_divided(job):
        raise CannotPredict("--fastest looks for a way to divide the training itself: leave tensor and pipeline out")
    with Runs(gpu, steps=_STEPS, workers=workers, progress=progress, like=job) as runs:
        return LayoutSearch(job, gpu, runs).fastest()


@dataclass(slots=True)
class _Estimate:
    layout: Layout
    allocated_bytes: float
    seconds: float


class LayoutSearch:
    """Small models order the layouts; those that come first are run in full."""

    def __init__(self, job: Job, gpu: GpuSpec, runs: Runs) -> None:
        self._job, self._gpu, self._runs = job, gpu, runs
        self._name, self._component = next(iter(job.components.items()))
        self._layers = layer_count(self._component)
        self._samples = job.effective_sizes["batch"] * job.accumulation * job.gpus.count
        self._refused: dict[str, str] = {}
        self.traced: list[tuple[Layout, Traced]] = []
        """What was run in full, but for pipelines."""

    def fastest(self, most: int = _SHOWN) -> FastestLayouts:
        """The search ends when so many have been found."""
        ways = [layout for layout in layouts(self._job) if layout.stages <= self._layers]
        estimates = self._estimates(ways)
        room = self._gpu.pytorch_bytes
        likely = sorted(
            (one for one in estimates if one.allocated_bytes <= _CERTAINLY_TOO_MUCH * room),
            key=lambda one: one.seconds,
        )
        found: list[FastLayout] = []
        for start in range(0, min(len(likely), _MOST_TRIED), 2):
            found += self._in_full([one.layout for one in likely[start : start + 2]])
            if len(found) >= most:
                break
        found.sort(key=lambda way: way.step_seconds)
        return FastestLayouts(
            self._gpu, self._job.gpus.count, tuple(found), len(ways), self._runs.n_traced, self._refused
        )

    def _estimates(self, ways: list[Layout]) -> list[_Estimate]:
        """FSDP first: what it shards says which of the others cannot hold the job, whatever else they take."""
        first = [way for way in ways if _is_plain_fsdp(way)]
        found = self._traced_small(first)
        count, room = self._job.gpus.count, self._gpu.pytorch_bytes
        state = max((one.state_bytes for one in found), default=0.0) * count
        half = self._job.precision.autocast_dtype != "none" or self._job.precision.weights_dtype != "fp32"
        gathered = rough_parameters(self._component) * (2 if half else 4)
        rest = [
            way
            for way in ways
            if way not in first and state / way.shards + (gathered if way.keeps_gathered else 0) <= room
        ]
        plain = next((one.estimate for one in found if not one.estimate.layout.checkpoints), None)
        if plain is not None and len(first) > 1:
            if plain.allocated_bytes > _FAR_TOO_MUCH * room:
                rest = [way for way in rest if way.checkpoints]
            elif plain.allocated_bytes <= _EASILY * room:
                rest = [way for way in rest if not way.checkpoints]
        return [one.estimate for one in (*found, *self._traced_small(rest))]

    def _traced_small(self, ways: list[Layout]) -> list[_Small]:
        wishes = [self._small_wish(way, layers * _scale(way)) for way in ways for layers in (_FEW, _MORE)]
        answers = iter(self._runs.trace(wishes))
        small = []
        for way in ways:
            few, more = next(answers), next(answers)
            if isinstance(few, VramcastError) or isinstance(more, VramcastError):
                error = few if isinstance(few, VramcastError) else more
                self._refused[way.text] = str(error).splitlines()[0]
                continue
            one = _Small(way, few, more, self._layers)
            if one.estimate.seconds > 0:
                small.append(one)
        return small

    def _small_wish(self, layout: Layout, layers: int) -> Wish:
        smaller = {f"components.{self._name}.config": {**self._component.config, "num_hidden_layers": layers}}
        job = with_overrides(self._job, {**layout.changes, **smaller})
        return Wish(job, f"{layers} layers, {layout.text}", steps=_FEW_STEPS)

    def _wish(self, layout: Layout) -> Wish:
        return Wish(with_overrides(self._job, layout.changes), layout.text, under=(EXPANDABLE,))

    def _in_full(self, ways: list[Layout]) -> list[FastLayout]:
        found = []
        whole = [way for way in ways if way.stages == 1]
        for way, traced in zip(whole, self._runs.trace([self._wish(way) for way in whole]), strict=True):
            if isinstance(traced, VramcastError):
                self._refused[way.text] = str(traced).splitlines()[0]
                continue
            self.traced.append((way, traced))
            held = fitting(traced)
            if held is not None and traced.time is not None:
                conf = {} if held[1] is None else {"allocator_conf": held[1]}
                layout = Layout(way.text, {**way.changes, **conf})
                found.append(FastLayout(layout, held[0], traced.time.seconds, self._samples))
        return found + [one for way in ways if way.stages > 1 and (one := self._stages(way)) is not None]

    def _stages(self, way: Layout) -> FastLayout | None:
        """A pipeline fits where each of its stages does."""
        from vramcast.prediction.ranks import predict_distinct_ranks

        staged = LoadedJob(job=with_overrides(self._job, way.changes))
        self._runs.n_traced += 1
        try:
            result, _ = predict_distinct_ranks(staged, self._gpu, steps=_STEPS)
        except VramcastError as error:
            self._refused[way.text] = str(error).splitlines()[0]
            return None
        time = result.prediction.time
        if not result.fits or time is None:
            return None
        return FastLayout(way, result.prediction, time.seconds, self._samples)


class _Small:
    """What two small models say of one with all layers."""

    def __init__(self, layout: Layout, few: Traced, more: Traced, layers: int) -> None:
        at, step = _FEW * _scale(layout), (_MORE - _FEW) * _scale(layout)

        def extended(of_few: float, of_more: float) -> float:
            return of_few + (of_more - of_few) / step * (layers - at)

        self.estimate = _Estimate(
            layout,
            extended(few.prediction.peak_allocated_bytes, more.prediction.peak_allocated_bytes),
            0.0 if few.time is None or more.time is None else extended(few.time.seconds, more.time.seconds),
        )
        self.state_bytes = extended(_state(few), _state(more))


def _is_plain_fsdp(layout: Layout) -> bool:
    return layout.changes.get("gpus.strategy") == "fsdp" and not layout.splits and not layout.keeps_gathered


def _state(traced: Traced) -> float:
    """What a card holds throughout, at least."""
    return float(sum(part.size_bytes for part in traced.prediction.account.parts if part.name == "optimizer state"))


def _scale(layout: Layout) -> int:
    """How many times as many layers the small models of a pipeline have."""
    return max(1, layout.stages // 2)
