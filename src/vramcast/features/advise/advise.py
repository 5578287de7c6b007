"""`advise(job)`: suggest changes that make it fit, each of them traced. torch is imported when it is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError, VramcastError
from vramcast.base.shown import Shown
from vramcast.base.units import format_gib
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.config import card_options, config_text, options_text, said_by_config
from vramcast.features.advise.divided import compare_layouts, known_runs, next_questions
from vramcast.features.advise.knobs import check_pins, options_for
from vramcast.features.advise.knobs.batch import MOST_STEPS, divisors
from vramcast.features.advise.largest import LargestResult, asked_number, growing_axes, start
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


@dataclass(frozen=True, slots=True, repr=False)
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
    also: Iterable[str] = (),
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

    `keep` names knobs that are left alone, `also` those that are only turned on request. Batch × GPUs × accumulation
    always stays what it is. `workers` above 1: so many runs are traced at a time, in forks of this process (Linux),
    which must not have used a GPU. `allow_code`: a file that `job` names may name code to run.
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
        options = options_for(loaded.job, card, pins, tuple(also))
        first = [Combination(()), *(_smallest_batch(loaded.job, options) if runs.workers > 1 else ())]
        wishes = [
            Wish(with_overrides(loaded.job, combination.changes), combination.text or "the job as it is")
            for combination in first
        ]
        asked_run, *others = [runs.begin(wish) for wish in wishes]
        asked = asked_run()
        if isinstance(asked, VramcastError):
            raise _placed(asked, loaded)
        divided = compare_layouts(loaded.job, card, runs, options.get("gpus", ()), pins)
        options = said_by_config(loaded, {**options, **({"gpus": [*divided.options]} if "gpus" in options else {})})
        known, only_together = known_runs(loaded.job, divided, options)
        search = Search(
            job=loaded.job, runs=runs, options=options, objective=objective, asked=asked, only_together=only_together
        )
        for combination, traced in known:
            if combination.options:
                search.learn([combination], [traced])
        search.expect(zip(first[1:], others, strict=True))
        sizes = _Sizes(runs, search, card, steps, pins, largest)
        best = search.best(sizes.start_if_traced)
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
            best = search.fitting()  # the one that needs the least may fit, though it was the last thing to try
            smallest = None if best else smallest
        largest_sizes = sizes.collect()
    refused = search.estimates.refused
    named = card_options(gpu, memory, device, card)

    def made(combination: Combination) -> Suggestion:
        return _suggestion(loaded, search, combination, named)

    advice = Advice(
        job=loaded.job.name,
        recognised_as=loaded.recognised_as,
        objective=objective,
        keep=pins,
        local=local,
        asked=asked.prediction,
        best=tuple(made(combination) for combination in best),
        front=tuple(made(combination) for combination in search.front()) if best else (),
        smallest=None if smallest is None else made(smallest),
        smallest_card=None if smallest is None else _smallest_card(search, smallest),
        largest=largest_sizes,
        too_large=_too_large(search, smallest) if smallest is not None else "",
        next_questions=next_questions(loaded.job, divided, best[0] if best else None, asked, search),
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
    """The smallest batch, for a second process to trace beside the job as it is: it shows what does not grow with the
    batch."""
    batches = sorted(
        (Combination((option,)) for option in options.get("batch", ())), key=lambda combination: combination.batch(job)
    )
    return [combination for combination in batches[:1] if combination.batch(job) < job.effective_sizes["batch"]]


class _Sizes:
    """Looks for the largest sizes while the search goes on."""

    def __init__(
        self, runs: Runs, search: Search, gpu: GpuSpec, steps: int, keep: tuple[str, ...], every_size: bool
    ) -> None:
        self._runs, self._search, self._gpu, self._steps = runs, search, gpu, steps
        self._keep, self._every_size = keep, every_size
        self._waiting: list[tuple[Job, Callable[[], LargestResult]]] = []
        self._started: set[Combination] = set()
        self.problems: list[str] = []

    def start_if_traced(self) -> None:
        """Look for the largest batch of the job as it is, once a batch near the likely answer is traced: the search
        adds nothing to that."""
        asked = Combination(())
        job = self._job(asked)
        traced = [number for number, _ in self._batches(asked, job.accumulation)]
        if not self._every_size and self._search.largest_batch(asked, job) in traced:
            self.start(asked)

    def start(self, combination: Combination) -> None:
        """Look for the largest sizes of a configuration, once: of the job as it is the batch, and the others where it
        fits; of another configuration only if asked to."""
        if combination in self._started:
            return
        self._started.add(combination)
        search = self._search
        asked, fits = not combination.options, search.prediction(combination).fits
        job = self._job(combination)
        for axis in growing_axes(job, self._keep, all_of_them=self._every_size and (not asked or fits)):
            known, near = [(asked_number(job, axis), search.traced[combination])], None
            if axis == "batch":
                known = self._batches(combination, job.accumulation)
                near = search.largest_batch(combination, job)
                if not asked and not self._every_size:
                    continue
            answer = start(self._runs, job, self._gpu, self._steps, axis, known, near, of=combination.text)
            self._waiting.append((job, answer))

    def _job(self, combination: Combination) -> Job:
        """The job with as many passes as a batch that fits would take."""
        search = self._search
        job = with_overrides(search.job, combination.changes)
        if not combination.options and not search.prediction(combination).fits and self._accumulates(job):
            # A smaller batch accumulates gradients, which then stay during the forward pass.
            together = job.effective_sizes["batch"] * job.accumulation
            batch = search.largest_batch(combination, with_overrides(job, {"accumulation": MOST_ACCUMULATED})) or 1
            job = with_overrides(job, {"accumulation": min(MOST_ACCUMULATED, max(2, round(together / batch)))})
        return job

    def _accumulates(self, job: Job) -> bool:
        together = job.effective_sizes["batch"] * job.accumulation
        return job.task == "training" and bool(job.components) and together >= MOST_ACCUMULATED

    def _batches(self, combination: Combination, accumulation: int) -> list[tuple[int, Traced]]:
        """What was traced of this configuration at any batch, with the same number of passes."""
        search = self._search
        accumulates = min(MOST_ACCUMULATED, accumulation)
        return [
            (other.batch(search.job), traced)
            for other, traced in search.traced.items()
            if other.without("batch") == combination.without("batch")
            and min(MOST_ACCUMULATED, other.accumulation(search.job)) == accumulates
        ]

    def collect(self) -> tuple[LargestSize, ...]:
        sizes = []
        for job, answer in self._waiting:
            largest = answer()
            if largest.sizes is None:
                self.problems.append(largest.problem)
            elif largest.sizes.axis == "batch" and largest.sizes.sizes and job.components and job.task == "training":
                sizes.append(_accumulated(largest.sizes, self._search.job, job.accumulation))
            else:
                sizes.append(largest.sizes)
        return tuple(sizes)


def _accumulated(size: LargestSize, job: Job, looked_for: int) -> LargestSize:
    """The batch and the accumulation that keep the samples of a step, where as many passes were traced."""
    together = job.effective_sizes["batch"] * job.accumulation
    batch = max(divisor for divisor in divisors(together) if divisor <= size.sizes["batch"])
    accumulation = together // batch
    if accumulation > MOST_STEPS or min(accumulation, MOST_ACCUMULATED) != min(looked_for, MOST_ACCUMULATED):
        return size
    return dataclasses.replace(
        size, kept_batch=batch, accumulation=accumulation, samples_per_step=together * job.gpus.count
    )


def _too_large(search: Search, combination: Combination) -> str:
    """What takes up the memory in the configuration that needs the least."""
    parts = largest_parts(search.prediction(combination).account.parts)[:2]
    return " and ".join(f"{part.name} {format_gib(part.size_bytes)}" for part in parts)


def _placed(error: VramcastError, loaded: LoadedJob) -> VramcastError:
    """A mistake in the job names the file that it is in."""
    if not isinstance(error, UsageError) or not loaded.where or loaded.where in str(error):
        return error
    return UsageError(f"{loaded.where}: {error}")


def _suggestion(loaded: LoadedJob, search: Search, combination: Combination, card: str) -> Suggestion:
    job = with_overrides(loaded.job, combination.changes)
    sample_seconds = search.pace.seconds_per_sample(combination)
    return Suggestion(
        changes=tuple(Change(knob=o.knob, text=o.text, cost=o.cost, risk=RISKS[o.risk]) for o in combination.options),
        overrides=combination.changes,
        prediction=search.prediction(combination),
        batch=job.effective_sizes["batch"],
        accumulation=job.accumulation,
        samples_per_step=job.samples_per_step,
        time_factor=search.time(combination),
        step_seconds=None if sample_seconds is None else sample_seconds * job.samples_per_step,
        samples_per_second=None if sample_seconds is None else 1 / sample_seconds,
        by_rule=tuple(option.text for option in combination.by_rule),
        config=config_text(loaded, combination.changes, card),
        options=options_text(combination.changes),
    )


def _smallest_card(search: Search, combination: Combination) -> CardFit | None:
    trace = search.prediction(combination).trace
    if trace is None:
        return None
    conf = with_overrides(search.job, combination.changes).allocator_conf
    fitting = [card for card in card_fits(trace, all_gpus(), conf) if card.fits]
    return min(fitting, key=lambda card: (card.limit_bytes, card.gpu.id), default=None)
