"""What the page shows for a state: from traces that are there where they say it, else from a new one.

A trace answers for other cards, limits and allocator settings by being replayed. Two traces of other batches say what a
third would allocate (memory/scaling.py); such an answer says that it is worked out, and a trace takes its place.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vramcast.base.access import limited
from vramcast.base.errors import UsageError
from vramcast.base.language import language, name, say, sentence
from vramcast.base.sealing import sealed
from vramcast.base.units import parse_bytes
from vramcast.features.advise.write import whole_yaml
from vramcast.gpus import all_gpus, find_gpu
from vramcast.jobs.load import LoadedJob
from vramcast.jobs.schema import Job
from vramcast.memory import Prediction
from vramcast.memory.prediction import predict_and_replay, with_time
from vramcast.memory.replay import Replay
from vramcast.memory.scaling import DifferentRuns, ScaledTrace
from vramcast.memory.step_course import course_without_segments
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.report.html_parts import Bar, bars
from vramcast.report.html_report import suggested_bar
from vramcast.report.pictures import course_columns, pictures
from vramcast.report.time import headline as time_headline
from vramcast.report.wording import place, verdict
from vramcast.serve.sources import EXAMPLES, TRACE, Sources
from vramcast.serve.state import SIZES, PageState
from vramcast.serve.tracer import Tracer
from vramcast.trace import StepTrace

_MOST_RECIPES = 6
_MOST_BATCHES = 4
_MOST_DOCUMENTS = 60
_MOVING_POINTS, _MOVING_ROWS = 400, 1500
"""Of the picture while a slider moves; all of it is drawn when it rests."""
TRACED, REPLAYED, WORKED_OUT = "traced", "replayed", "worked out"


@dataclass
class _Recipe:
    """Traces of one job that differ in the batch, and in the card they were made for."""

    traced: dict[tuple[int, str], JobPrediction] = field(default_factory=dict)
    """By batch and card."""
    scaled: dict[tuple[int, ...], ScaledTrace | None] = field(default_factory=dict)
    documents: OrderedDict[tuple[str, ...], dict[str, Any]] = field(default_factory=OrderedDict)
    """What was answered, for whoever moves a slider to and fro and for several who look at the same."""

    def keep(self, key: tuple[str, ...], document: dict[str, Any]) -> dict[str, Any]:
        self.documents[key] = document
        while len(self.documents) > _MOST_DOCUMENTS:
            self.documents.popitem(last=False)
        return document

    def add(self, batch: int, found: JobPrediction) -> None:
        self.traced[batch, found.gpu.id] = found
        while len(self.traced) > _MOST_BATCHES:
            del self.traced[next(iter(self.traced))]
        self.scaled.clear()
        self.documents.clear()

    def trace(self, batch: int, gpu: str) -> StepTrace | None:
        """Of this batch, for this card if there is one."""
        ordered = sorted(self.traced.items(), key=lambda item: item[0][1] != gpu)
        return next((one.trace for (size, _), one in ordered if size == batch and _whole(one)), None)

    def worked_out(self, batch: int, gpu: str) -> tuple[StepTrace, tuple[int, int]] | None:
        """From two other batches."""
        sizes = sorted({size for (size, _), one in self.traced.items() if size > 1 and _whole(one)})
        near = sorted(sorted(sizes, key=lambda size: abs(size - batch))[:2])
        if len(near) < 2:
            return None
        key = (*near,)
        if key not in self.scaled:
            traces = {size: self.trace(size, gpu) for size in near}
            try:
                self.scaled[key] = ScaledTrace({size: trace for size, trace in traces.items() if trace is not None})
            except DifferentRuns:
                self.scaled[key] = None
        scaled = self.scaled[key]
        return None if scaled is None else (scaled.at(batch), (near[0], near[1]))


def _recipe_key(job: Job) -> str:
    """What decides which allocations are made, but for the batch: jobs that agree in it can share traces."""
    data = job.model_dump(mode="json", exclude={"allocator_conf", "target"})
    data["sizes"] = {name: size for name, size in data["sizes"].items() if name != "batch"}
    data["gpus"]["global_batch"] = None
    return json.dumps(data, sort_keys=True)


def _whole(found: JobPrediction) -> bool:
    return found.trace is not None and not found.prediction.at_least and not found.trace.ends_refused


class Answers:
    def __init__(self, sources: Sources, tracer: Tracer | None = None) -> None:
        self.sources = sources
        self.tracer = tracer or Tracer(sources)
        self._recipes: OrderedDict[str, _Recipe] = OrderedDict()
        self._traces: OrderedDict[Path, StepTrace] = OrderedDict()
        self._gpus = {gpu.id for gpu in all_gpus()}
        self._lock = threading.Lock()

    def start(self) -> dict[str, Any]:
        """What can be chosen."""
        return {
            "folders": [f"folder:{name}" for name in self.sources.listed()],
            "examples": {f"example:{key}": name(example.title) for key, example in EXAMPLES.items()},
            "gpus": [{"id": gpu.id, "name": gpu.short_name, "bytes": gpu.total_memory_bytes} for gpu in all_gpus()],
        }

    def job(self, state: PageState) -> dict[str, Any]:
        """The job as its files have it, for the page's controls."""
        path = self.sources.trace_file(state)
        if path is not None:
            gpu = self._trace(path).gpu.get("id", "")
            return {
                "name": self._trace(path).source, "recognised_as": "a trace", "sizes": {}, "accumulation": 1,
                "gpus": 1, "has_model": False, "is_trace": True, "gpu": gpu if gpu in self._gpus else "",
            }  # fmt: skip
        with self._limits(state):
            loaded = self.sources.load_plain(state)
        job = loaded.job
        sizes = {name: size for name, size in job.effective_sizes.items() if name in SIZES}
        return {
            "name": job.name,
            "recognised_as": loaded.recognised_as,
            "sizes": sizes,
            "accumulation": job.accumulation,
            "gpus": job.gpus.count,
            "has_model": bool(job.components),
            "gpu": job.target.gpu or "",
            "is_trace": False,
        }

    def _trace(self, path: Path) -> StepTrace:
        with self._lock:
            if path not in self._traces:
                self._traces[path] = StepTrace.load(path)
                while len(self._traces) > _MOST_RECIPES:
                    self._traces.popitem(last=False)
            return self._traces[path]

    def _of_trace(self, state: PageState, path: Path) -> dict[str, Any]:
        """A trace that was sent, replayed for the card and the limit."""
        prediction = with_time(_replayed(self._trace(path), state)[0])
        options = ["--gpu", state.gpu, *(["--limit", state.limit] if state.limit else [])]
        options += ["--allocator-conf", state.allocator] if state.allocator else []
        command = shlex.join(["vramcast", "show", *options, TRACE])
        how = say("replayed: traced on {card}", card=self._trace(path).gpu.get("name", "?"))
        return self._document(command, "", prediction, REPLAYED, how, pictures(prediction))

    def quick(self, state: PageState, *, with_pictures: bool = False) -> dict[str, Any] | None:
        """From what was traced before; None where that does not say it."""
        path = self.sources.trace_file(state)
        if path is not None:
            return self._of_trace(state, path)
        with self._limits(state):
            loaded = self.sources.load(state)
        recipe = self._recipe(loaded.job, make=False)
        if recipe is None:
            return None
        key = (state.model_dump_json(), language(), str(with_pictures))
        known = recipe.documents.get(key)
        if known is not None:
            return known
        found = self._from_traces(state, loaded, recipe, with_pictures)
        return None if found is None else recipe.keep(key, found)

    def _from_traces(
        self, state: PageState, loaded: LoadedJob, recipe: _Recipe, with_pictures: bool
    ) -> dict[str, Any] | None:
        batch, gpu = loaded.job.effective_sizes["batch"], find_gpu(state.gpu)
        command = self.sources.command(state, loaded)
        exact = recipe.traced.get((batch, gpu.id))
        if exact is not None and not state.limit and exact.job.allocator_conf == loaded.job.allocator_conf:
            drawn = pictures(exact.prediction)
            return self._document(command, whole_yaml(loaded.job), exact.prediction, TRACED, "", drawn, exact)
        trace = recipe.trace(batch, gpu.id)
        if trace is not None:
            kind, how = REPLAYED, say("replayed: traced on {card}", card=trace.gpu.get("name", "?"))
        else:
            found = recipe.worked_out(batch, gpu.id)
            if found is None:
                return None
            trace, (first, second) = found
            kind = WORKED_OUT
            how = say("worked out from traces of batch {first} and {second}", first=first, second=second)
        prediction, shown = _replayed(trace, state)
        if with_pictures:
            drawn = pictures(prediction)
        else:
            course = course_without_segments(prediction, shown, _MOVING_POINTS, _MOVING_ROWS)
            columns = course_columns(course, prediction.context_bytes, prediction.limit_bytes)
            drawn = {"course": columns, "moving": True}
        config = whole_yaml(loaded.job) if with_pictures else ""  # it takes a while, and nobody copies it in between
        return self._document(command, config, prediction, kind, how, drawn)

    def exact(self, state: PageState, stop: threading.Event, progress: Callable[[str], None]) -> dict[str, Any]:
        """Traced as `vramcast predict` does it."""
        path = self.sources.trace_file(state)
        if path is not None:
            return self._of_trace(state, path)
        with self._limits(state):
            loaded = self.sources.load(state)
        found = self.tracer.trace(state, stop, progress)
        if not state.limit:
            recipe = self._recipe(loaded.job, make=True)
            assert recipe is not None
            batch = loaded.job.effective_sizes["batch"]
            recipe.add(batch, found)
            recipe.worked_out(
                batch + 1, found.gpu.id
            )  # compares the traces, so that the first move of a slider is quick
        said = self.sources.command(state, loaded), whole_yaml(loaded.job)
        return self._document(*said, found.prediction, TRACED, "", pictures(found.prediction), found)

    def changes(self, state: PageState, stop: threading.Event) -> dict[str, Any]:
        """What makes the job fit, as bars against the limit, and as settings of the page where it has them."""
        if self.sources.trace_file(state) is not None:
            raise UsageError("a trace can be replayed, not changed; send the job to find what makes it fit")
        found = self.tracer.changes(state, stop)
        limit = found[0].prediction.limit_bytes if found else 0
        return {
            "bars": bars([suggested_bar(one) for one in found], limit),
            "changes": [{"text": sentence(one.text), "state": _as_state(state, one.overrides)} for one in found],
        }

    def second_batch(self, state: PageState) -> PageState | None:
        """The state to trace so that other batches can be worked out; None where they can be already."""
        if self.sources.trace_file(state) is not None:
            return None
        with self._limits(state):
            job = self.sources.load(state).job
        batch = job.effective_sizes["batch"]
        recipe = self._recipe(job, make=False)
        known = set() if recipe is None else {size for size, _ in recipe.traced if size > 1}
        if len(known) > 1:
            return None
        return state.model_copy(update={"batch": batch + 1 if batch < 4 else batch * 3 // 4, "limit": ""})

    def _recipe(self, job: Job, *, make: bool) -> _Recipe | None:
        key = _recipe_key(job)
        with self._lock:
            if key not in self._recipes and make:
                self._recipes[key] = _Recipe()
                while len(self._recipes) > _MOST_RECIPES:
                    self._recipes.popitem(last=False)
            if key in self._recipes:
                self._recipes.move_to_end(key)
            return self._recipes.get(key)

    @contextmanager
    def _limits(self, state: PageState) -> Iterator[None]:
        limits = self.sources.limits(state)
        with limited(limits), sealed(on=not limits.allow_code):
            yield

    def _document(
        self, command: str, config: str, prediction: Prediction, kind: str, how: str, drawn: dict[str, Any],
        traced: JobPrediction | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        parts = {part.name: part.size_bytes for part in prediction.account.parts if part.size_bytes}
        time = prediction.time
        throughput = traced.throughput if traced is not None else None
        cards = [] if traced is None else sorted(
            (card for card in traced.cards if card.fits), key=lambda card: (card.limit_bytes, card.gpu.id)
        )  # fmt: skip
        return {
            "kind": kind,
            "how": how,
            "verdict": verdict(prediction),
            "fits": prediction.fits,
            "device_bytes": prediction.device_bytes,
            "limit_bytes": prediction.limit_bytes,
            "headroom_bytes": prediction.headroom_bytes,
            "peak_allocated_bytes": prediction.peak_allocated_bytes,
            "peak_reserved_bytes": prediction.peak_reserved_bytes,
            "where": place(prediction.account.moment),
            "parts": parts,
            "time": None if time is None else time_headline(time, throughput),
            "bar": bars(
                [Bar(prediction.gpu.short_name, prediction.device_bytes, prediction.fits)], prediction.limit_bytes
            ),
            "cards": [{"id": card.gpu.id, "name": card.gpu.short_name} for card in cards[:8]],
            "notes": [
                {"topic": sentence(note.topic), "text": sentence(note.text), "where": note.where}
                for note in prediction.notes
            ],
            "command": command,
            "config": config,
            "pictures": drawn,
        }


def _as_state(state: PageState, overrides: Mapping[str, Any]) -> dict[str, Any] | None:
    """The page's settings that say these changes; None where it has no control for one of them."""
    fields = {"allocator_conf": "allocator", "gpus.count": "gpus", "gpus.strategy": "strategy"}
    changed = {fields.get(key, key.removeprefix("sizes.")): value for key, value in overrides.items()}
    try:
        return PageState.model_validate(state.model_dump() | changed).model_dump(exclude_none=True)
    except ValidationError:
        return None


def _replayed(trace: StepTrace, state: PageState) -> tuple[Prediction, Replay]:
    gpu = find_gpu(state.gpu)
    limit = parse_bytes(state.limit) if state.limit else None
    if limit is None and gpu.id == trace.gpu.get("id"):
        # What the card has, not the limit that the trace was made with.
        limit = gpu.total_memory_bytes - trace.context_bytes
        if limit <= 0:
            raise UsageError(f"{gpu.short_name}: nothing is left for PyTorch")
    return predict_and_replay(
        trace, gpu=gpu, capacity_bytes=limit, allocator_conf=state.allocator or None, timeline_points=0
    )
