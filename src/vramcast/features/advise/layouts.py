"""The fastest way to train a job on so many cards: how the model is divided, and whether activations are kept.

The samples of an optimizer step stay what they are. Two small models with the same layers are traced for each way:
memory and time grow evenly with the layers, which gives an order. What is shown has been run in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.base.errors import CannotPredict, VramcastError
from vramcast.features.advise.fewest import EXPANDABLE, fitting
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.jobs.stage_layers import layer_count
from vramcast.memory import Prediction

_FEW, _MORE = 2, 4
"""Layers of the two small models; of a pipeline, those of each stage."""
_FEW_STEPS = 2
"""Steps of a small model: in the second there is optimizer state."""
_STEPS = 3
"""As many as `predict` traces, so that its figures are the same."""
_SHOWN = 3
_MOST_TRIED = 6
"""Full runs that are made at most: those that come first by the estimate may turn out not to fit."""
_CERTAINLY_TOO_MUCH = 1.1
_TENSOR, _PIPELINE = (2, 4, 8), (2, 4)


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to divide the job."""

    text: str
    changes: Mapping[str, Any]
    """Dotted key → value, for --set."""

    @property
    def stages(self) -> int:
        return int(self.changes.get("gpus.pipeline", 1))


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
    if job.gpus.tensor > 1 or job.gpus.pipeline > 1 or job.task != "training":
        raise CannotPredict("--fastest looks for a way to divide the training itself: leave tensor and pipeline out")
    with Runs(gpu, steps=_STEPS, workers=workers, progress=progress, like=job) as runs:
        return _Search(job, gpu, runs).run(loaded)


def layouts(job: Job) -> Iterator[Layout]:
    """Every way that there is, the plainest first."""
    gpus = job.gpus
    count, node = gpus.count, gpus.node_size
    batch, passes = job.effective_sizes["batch"], job.accumulation
    schemes = {"": {}, ", checkpointed": {"checkpointing": "all"}} if job.checkpointing.scope == "none" else {"": {}}
    base = {"gpus.count": count, "gpus.per_node": node}
    for ending, checkpointing in schemes.items():
        if count == 1:
            yield Layout(f"one card{ending}", {**base, **checkpointing})
            continue
        yield Layout(f"DDP{ending}", {**base, "gpus.strategy": "ddp", **checkpointing})
        yield Layout(f"FSDP{ending}", {**base, "gpus.strategy": "fsdp", **checkpointing})
        if gpus.nodes > 1 and count % gpus.nodes == 0:
            hybrid = {"gpus.strategy": "hsdp", "gpus.replicas": gpus.nodes}
            yield Layout(f"HSDP, {gpus.nodes} replicas{ending}", {**base, **hybrid, **checkpointing})
        for tensor in _TENSOR:
            if tensor <= node and count % tensor == 0:
                strategy = "fsdp" if count > tensor else "none"
                split = {**base, "gpus.strategy": strategy, "gpus.tensor": tensor, **checkpointing}
                name = f"{'FSDP + ' if count > tensor else ''}TP {tensor}"
                yield Layout(f"{name}, batch {batch * tensor}{ending}", {**split, "sizes.batch": batch * tensor})
        for stages in _PIPELINE:
            if count % stages == 0:
                strategy = "fsdp" if count > stages else "none"
                cut = {"gpus.strategy": strategy, "gpus.pipeline": stages, "accumulation": passes * stages}
                name = f"{'FSDP + ' if count > stages else ''}PP {stages}"
                yield Layout(
                    f"{name}, {passes * stages} microbatches of {batch}{ending}", {**base, **cut, **checkpointing}
                )


@dataclass(slots=True)
class _Estimate:
    layout: Layout
    allocated_bytes: float
    seconds: float


class _Search:
    def __init__(self, job: Job, gpu: GpuSpec, runs: Runs) -> None:
        self._job, self._gpu, self._runs = job, gpu, runs
        self._name, self._component = next(iter(job.components.items()))
        self._layers = layer_count(self._component)
        self._samples = job.effective_sizes["batch"] * job.accumulation * job.gpus.count
        self._refused: dict[str, str] = {}

    def run(self, loaded: LoadedJob) -> FastestLayouts:
        ways = [layout for layout in layouts(self._job) if layout.stages <= self._layers]
        estimates = self._estimates(ways)
        room = self._gpu.pytorch_bytes
        likely = sorted(
            (one for one in estimates if one.allocated_bytes <= _CERTAINLY_TOO_MUCH * room),
            key=lambda one: one.seconds,
        )
        found: list[FastLayout] = []
        for start in range(0, min(len(likely), _MOST_TRIED), 2):
            found += self._in_full(loaded, [one.layout for one in likely[start : start + 2]])
            if len(found) >= _SHOWN:
                break
        found.sort(key=lambda way: way.step_seconds)
        return FastestLayouts(
            self._gpu, self._job.gpus.count, tuple(found), len(ways), self._runs.n_traced, self._refused
        )

    def _estimates(self, ways: list[Layout]) -> list[_Estimate]:
        """FSDP first: what it shards says which of the others cannot hold the job, whatever else they take."""
        first = [way for way in ways if way.changes.get("gpus.strategy") == "fsdp" and not _splits(way)]
        found = self._traced_small(first)
        state = max((one.state_bytes for one in found), default=0.0) * self._job.gpus.count
        room = self._gpu.pytorch_bytes
        rest = [way for way in ways if way not in first and state / _shards(way) <= room]
        return [one.estimate for one in (*found, *self._traced_small(rest))]

    def _traced_small(self, ways: list[Layout]) -> list[_Small]:
        wishes = [self._small_wish(way, way.stages * layers) for way in ways for layers in (_FEW, _MORE)]
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

    def _in_full(self, loaded: LoadedJob, ways: list[Layout]) -> list[FastLayout]:
        found = []
        whole = [way for way in ways if way.stages == 1]
        for way, traced in zip(whole, self._runs.trace([self._wish(way) for way in whole]), strict=True):
            if isinstance(traced, VramcastError):
                self._refused[way.text] = str(traced).splitlines()[0]
                continue
            held = fitting(traced)
            if held is not None and traced.time is not None:
                conf = {} if held[1] is None else {"allocator_conf": held[1]}
                layout = Layout(way.text, {**way.changes, **conf})
                found.append(FastLayout(layout, held[0], traced.time.seconds, self._samples))
        return found + [one for way in ways if way.stages > 1 and (one := self._stages(loaded, way)) is not None]

    def _stages(self, loaded: LoadedJob, way: Layout) -> FastLayout | None:
        """A pipeline fits where each of its stages does."""
        from vramcast.prediction.ranks import predict_distinct_ranks

        staged = LoadedJob(job=with_overrides(loaded.job, way.changes))
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
        at, step = _FEW * layout.stages, (_MORE - _FEW) * layout.stages

        def extended(of_few: float, of_more: float) -> float:
            return of_few + (of_more - of_few) / step * (layers - at)

        self.estimate = _Estimate(
            layout,
            extended(few.prediction.peak_allocated_bytes, more.prediction.peak_allocated_bytes),
            0.0 if few.time is None or more.time is None else extended(few.time.seconds, more.time.seconds),
        )
        self.state_bytes = extended(_state(few), _state(more))


def _state(traced: Traced) -> float:
    """What a card holds throughout, at least."""
    return float(sum(part.size_bytes for part in traced.prediction.account.parts if part.name == "optimizer state"))


def _splits(layout: Layout) -> bool:
    return "gpus.tensor" in layout.changes or "gpus.pipeline" in layout.changes


def _shards(layout: Layout) -> int:
    """Over how many cards the optimizer state is spread."""
    count = int(layout.changes["gpus.count"])
    copies = {"ddp": count, "hsdp": int(layout.changes.get("gpus.replicas", 1))}
    return count // copies.get(str(layout.changes.get("gpus.strategy")), 1)
