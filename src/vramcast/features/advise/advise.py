"""`advise(job)`: what to change so that it fits, each suggestion traced. torch is imported when it is called."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.shown import Shown
from vramcast.base.units import format_gib
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.config import config_text, said_by_config
from vramcast.features.advise.knobs import check_pins, options_for
from vramcast.features.advise.knobs.batch import MOST_STEPS, divisors
from vramcast.features.advise.largest import Found, asked_number, start, which
from vramcast.features.advise.option import RISKS, Option
from vramcast.features.advise.refine import refine
from vramcast.features.advise.result import Advice, Change, LargestSize, Suggestion
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.features.advise.search import OBJECTIVES, Search
from vramcast.features.advise.write import check_new_file, write_config
from vramcast.features.check.check import card_to_check
from vramcast.gpus import GpuSpec, all_gpus
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.jobs.schema.training import MOST_ACCUMULATED
from vramcast.memory.account import largest as largest_parts
from vramcast.memory.cards import CardFit, card_fits
from vramcast.prediction.predict import as_loaded, choose_card

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JobAdvice(Shown):
    advice: Advice
    loaded: LoadedJob

    @property
    def fits(self) -> bool:
        """Something that fits was found."""
        return self.advice.fits

    @property
    def best(self) -> tuple[Suggestion, ...]:
        return self.advice.best

    def job(self, number: int = 0) -> Job:
        """The job of suggestion `number`."""
        return with_overrides(self.loaded.job, self.advice.best[number].overrides)

    def write(self, path: str | Path, number: int = 0) -> None:
        """Suggestion `number` as a new file: like the job's own, or a vramcast.yaml. Nothing is overwritten."""
        if not self.advice.best:
            raise UsageError(f"--write {path}: nothing fits, so there is nothing to write")
        write_config(Path(path), self.loaded, self.advice.best[number].overrides)


def advise(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    device: int | None = None,
    *,
    keep: Iterable[str] = (),
    objective: str = OBJECTIVES[0],
    largest: bool = False,
    write: str | Path | None = None,
    steps: int = 3,
    workers: int = 1,
    allow_code: bool = False,
    progress: Progress = lambda text: None,
) -> JobAdvice:
    """What to change in `job` so that it fits `gpu`, `memory`, or what is free on card `device` (as in `check`).

    The largest batch that fits is always looked for; with `largest` also the longest sequence, the largest resolution
    and the longest clip, of the best configuration.

    `keep` names knobs that are left alone. Batch × GPUs × accumulation always stays what it is. `workers` above 1: so
    many runs are traced at a time, in forks of this process (Linux), which must not have used a GPU. `allow_code`: a
    file that `job` names may name code to run.
    """
    pins = tuple(dict.fromkeys(keep))
    check_pins(pins)
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective}: write one of {', '.join(OBJECTIVES)}")
    loaded = as_loaded(job, allow_code=allow_code)
    if write is not None:
        check_new_file(Path(write), loaded)
    spec, local = card_to_check(loaded.job, gpu, memory, device)
    card = spec if spec is not None else choose_card(loaded.job, None)[0]
    with Runs(card, steps=steps, workers=workers, progress=progress, like=loaded.job) as runs:
        options = said_by_config(loaded, options_for(loaded.job, card, pins))
        first = [Combination(()), *(_smallest_batch(loaded.job, options) if runs.workers > 1 else ())]
        wishes = [Wish(with_overrides(loaded.job, one.changes), one.text or "the job as it is") for one in first]
        found, *others = [runs.begin(wish) for wish in wishes]
        asked = found()
        if isinstance(asked, VramcastError):
            raise _placed(asked, loaded)
        search = Search(job=loaded.job, runs=runs, options=options, objective=objective, asked=asked)
        search.expect(zip(first[1:], others, strict=True))
        sizes = _Sizes(runs, search, card, steps, pins, largest)
        best = search.best(sizes.start_what_is_traced)
        search.collect()
        sizes.start(Combination(()))
        if best:
            search.begin_front()
            best = refine(search, best)
            search.collect()
            if best[0].options:
                sizes.start(best[0])
            search.fill_front()
        smallest = None if best else search.smallest()
        if smallest is not None:
            best = search.fitting()  # what needs the least may do, though it is the last thing to try
            smallest = None if best else smallest
        found_sizes = sizes.found()
    refused = search.estimates.refused
    named = card_options(gpu, memory, device, card)

    def made(one: Combination) -> Suggestion:
        return _suggestion(loaded, search, one, named)

    advice = Advice(
        job=loaded.job.name,
        recognised_as=loaded.recognised_as,
        objective=objective,
        keep=pins,
        local=local,
        asked=asked.prediction,
        best=tuple(made(one) for one in best),
        front=tuple(made(one) for one in search.front()) if best else (),
        smallest=None if smallest is None else made(smallest),
        smallest_card=None if smallest is None else _smallest_card(search, smallest),
        largest=found_sizes,
        too_large=_too_large(search, smallest) if smallest is not None else "",
        time=asked.time,
        combinations=search.combinations,
        traces=runs.n_traced,
        refused=(*(f"{' + '.join(sorted(what))}: {why}" for what, why in refused.items()), *sizes.problems),
    )
    result = JobAdvice(advice, loaded)
    if write is not None and best:
        result.write(write)
    return result


def _smallest_batch(job: Job, options: Mapping[str, list[Option]]) -> list[Combination]:
    """What a second process can trace beside the job as it is: what does not grow with the batch is then known."""
    batches = sorted((Combination((option,)) for option in options.get("batch", ())), key=lambda one: one.batch(job))
    return [one for one in batches[:1] if one.batch(job) < job.effective_sizes["batch"]]


class _Sizes:
    """Looks for the largest sizes while the search goes on."""

    def __init__(
        self, runs: Runs, search: Search, gpu: GpuSpec, steps: int, keep: tuple[str, ...], every_size: bool
    ) -> None:
        self._runs, self._search, self._gpu, self._steps = runs, search, gpu, steps
        self._keep, self._every_size = keep, every_size
        self._waiting: list[tuple[Job, Callable[[], Found]]] = []
        self._started: set[Combination] = set()
        self.problems: list[str] = []

    def start_what_is_traced(self) -> None:
        """Of the job as it is, where the batch that is thought to be the answer is traced already: what the search
        will trace adds nothing to it."""
        asked = Combination(())
        job = self._job(asked)
        traced = [number for number, _ in self._batches(asked, job.accumulation)]
        if not self._every_size and self._search.largest_batch(asked, job) in traced:
            self.start(asked)

    def start(self, one: Combination) -> None:
        """Of the job as it is the batch, and all else where it fits; of another configuration if asked for. Once."""
        if one in self._started:
            return
        self._started.add(one)
        search = self._search
        asked, fits = not one.options, search.prediction(one).fits
        job = self._job(one)
        for axis in which(job, self._keep, all_of_them=self._every_size and (not asked or fits)):
            known, near = [(asked_number(job, axis), search.found[one])], None
            if axis == "batch":
                known = self._batches(one, job.accumulation)
                near = search.largest_batch(one, job)
                if not asked and not self._every_size:
                    continue
            answer = start(self._runs, job, self._gpu, self._steps, axis, known, near, of=one.text)
            self._waiting.append((job, answer))

    def _job(self, one: Combination) -> Job:
        """With as many passes as a batch that fits would take."""
        search = self._search
        job = with_overrides(search.job, one.changes)
        if not one.options and not search.prediction(one).fits and self._accumulates(job):
            # A smaller batch accumulates gradients, which then lie there during the forward pass.
            together = job.effective_sizes["batch"] * job.accumulation
            batch = search.largest_batch(one, with_overrides(job, {"accumulation": MOST_ACCUMULATED})) or 1
            job = with_overrides(job, {"accumulation": min(MOST_ACCUMULATED, max(2, round(together / batch)))})
        return job

    def _accumulates(self, job: Job) -> bool:
        together = job.effective_sizes["batch"] * job.accumulation
        return job.task == "training" and bool(job.components) and together >= MOST_ACCUMULATED

    def _batches(self, one: Combination, accumulation: int) -> list[tuple[int, Traced]]:
        """What was traced of this configuration at any batch, with as many passes."""
        search = self._search
        accumulates = min(MOST_ACCUMULATED, accumulation)
        return [
            (other.batch(search.job), traced)
            for other, traced in search.found.items()
            if other.without("batch") == one.without("batch")
            and min(MOST_ACCUMULATED, other.accumulation(search.job)) == accumulates
        ]

    def found(self) -> tuple[LargestSize, ...]:
        sizes = []
        for job, answer in self._waiting:
            one = answer()
            if one.sizes is None:
                self.problems.append(one.problem)
            elif one.sizes.axis == "batch" and one.sizes.sizes and job.components and job.task == "training":
                sizes.append(_accumulated(one.sizes, self._search.job, job.accumulation))
            else:
                sizes.append(one.sizes)
        return tuple(sizes)


def _accumulated(size: LargestSize, job: Job, looked_for: int) -> LargestSize:
    """With the batch and the accumulation that keep the samples of a step, where as many passes were traced."""
    together = job.effective_sizes["batch"] * job.accumulation
    batch = max(one for one in divisors(together) if one <= size.sizes["batch"])
    accumulation = together // batch
    if accumulation > MOST_STEPS or min(accumulation, MOST_ACCUMULATED) != min(looked_for, MOST_ACCUMULATED):
        return size
    return dataclasses.replace(
        size, kept_batch=batch, accumulation=accumulation, samples_per_step=together * job.gpus.count
    )


def _too_large(search: Search, one: Combination) -> str:
    """What takes the room of what needs the least."""
    parts = largest_parts(search.prediction(one).account.parts)[:2]
    return " and ".join(f"{part.name} {format_gib(part.size_bytes)}" for part in parts)


def _placed(error: VramcastError, loaded: LoadedJob) -> VramcastError:
    """A mistake in the job names the file that it is in."""
    if not isinstance(error, UsageError) or not loaded.where or loaded.where in str(error):
        return error
    return UsageError(f"{loaded.where}: {error}")


def _suggestion(loaded: LoadedJob, search: Search, one: Combination, card: str) -> Suggestion:
    job = with_overrides(loaded.job, one.changes)
    sample_seconds = search.pace.seconds_per_sample(one)
    return Suggestion(
        changes=tuple(Change(knob=o.knob, text=o.text, cost=o.cost, risk=RISKS[o.risk]) for o in one.options),
        overrides=one.changes,
        prediction=search.prediction(one),
        batch=job.effective_sizes["batch"],
        accumulation=job.accumulation,
        samples_per_step=job.samples_per_step,
        time_factor=search.time(one),
        step_seconds=None if sample_seconds is None else sample_seconds * job.samples_per_step,
        samples_per_second=None if sample_seconds is None else 1 / sample_seconds,
        by_rule=tuple(option.text for option in one.by_rule),
        config=config_text(loaded, one.changes, card),
    )


def _smallest_card(search: Search, one: Combination) -> CardFit | None:
    trace = search.prediction(one).trace
    if trace is None:
        return None
    conf = with_overrides(search.job, one.changes).allocator_conf
    fitting = [card for card in card_fits(trace, all_gpus(), conf) if card.fits]
    return min(fitting, key=lambda card: (card.limit_bytes, card.gpu.id), default=None)


def card_options(gpu: str | GpuSpec | None, memory: str | int | None, device: int | None, card: GpuSpec) -> str:
    """The options that name the card again."""
    words = []
    if gpu is not None:
        words += ["--gpu", gpu if isinstance(gpu, str) else gpu.id]
    if memory is not None:
        words += ["--memory", str(memory)]
    if device is not None:
        words += ["--device", str(device)]
    return shlex.join(words or ["--gpu", card.id])
