"""`what_if(job)`: what becomes of a job with changes, alone and together, each traced. Imports torch when called."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.config import card_options, config_text
from vramcast.features.advise.knob_names import KNOBS, SPEED
from vramcast.features.advise.knobs import check_pins, options_for
from vramcast.features.advise.option import CHANGES_TRAINING, SAFE, USUAL, Option, go_together
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.features.what_if.result import Outcome, WhatIfs
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.prediction.predict import as_loaded, choose_card
from vramcast.prediction.step_time import job_throughput

Progress = Callable[[str], None]

_BOTH_WAYS = ("checkpointing", "compile", "attention", "liger")
"""Knobs of which the slower way is shown too."""
_OPTIONS_OF_A_KNOB = 2
_COMBINED = 3
"""Combinations of two or more that are traced."""
_WORTH = 1.01
_LARGER, _STILL_LARGER = (2,), (4,)
"""Batches that are tried, as multiples of the job's; the second where the first leaves room for it."""


def what_if(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    *,
    keep: Iterable[str] = (),
    also: Iterable[str] = (),
    steps: int = 2,
    workers: int = 1,
    allow_code: bool = False,
    progress: Progress = lambda text: None,
) -> WhatIfs:
    """Memory, step time and throughput of `job` with each change that suits it, and with the best of them together.

    `keep` names knobs that are left alone, `also` those that are only turned on request. `workers` above 1: so many
    runs are traced at a time, as in `advise`.
    `allow_code`: a file that `job` names may name code to run.
    """
    keep, also = tuple(keep), tuple(also)
    check_pins(keep)
    loaded = as_loaded(job, allow_code=allow_code)
    card, _ = choose_card(loaded.job, gpu)
    base = loaded.job
    if memory is not None:
        base = with_overrides(base, {"target.memory": memory, "target.fraction": None})
    with Runs(card, steps=steps, workers=workers, progress=progress, like=base) as runs:
        trials = _Trials(base, runs)
        trials.attempt(
            [Combination(()), *(Combination((option,)) for option in _options(loaded.job, card, keep, also))]
        )
        asked = trials.outcomes[Combination(())]
        trials.attempt(_still_larger(trials, loaded.job, keep))
        trials.attempt(_together(trials))
    ordered = sorted(
        (outcome for combination, outcome in trials.outcomes.items() if combination.options),
        key=lambda outcome: (not outcome.prediction.fits, -outcome.samples_per_second, len(outcome.changes)),
    )
    to_beat = asked.samples_per_second if asked.prediction.fits else 0.0
    faster = [outcome for outcome in ordered if outcome.prediction.fits and outcome.samples_per_second > to_beat]
    return WhatIfs(
        job=loaded.job.name,
        recognised_as=loaded.recognised_as,
        asked=asked,
        outcomes=tuple(ordered),
        refused=tuple(trials.refused),
        best=config_text(loaded, faster[0].overrides, card_options(gpu, memory, None, card)) if faster else None,
    )


def _options(job: Job, gpu: GpuSpec, keep: tuple[str, ...], also: tuple[str, ...]) -> list[Option]:
    unwanted = {*keep, *(name for name in KNOBS if name not in SPEED)}
    chosen = []
    for name, options in options_for(job, gpu, unwanted, also).items():
        # Accumulation only ever costs time: of the batches that keep the effective one, the larger ones.
        usable = [option for option in options if name != "batch" or option.time < 1]
        usable = [option for option in usable if (option.risk <= USUAL and option.time <= 1) or name in _BOTH_WAYS]
        usable.sort(key=lambda option: (option.time, option.state_ratio))
        chosen += usable[: 1 if name == "optimizer" else _OPTIONS_OF_A_KNOB]
    if "batch" not in keep:
        chosen += _larger_batches(job, _LARGER)
    return [*chosen, *_more_workers(job)]


def _still_larger(trials: _Trials, job: Job, keep: tuple[str, ...]) -> list[Combination]:
    """Twice the larger batch, where that may fit too."""
    options = [] if "batch" in keep else _larger_batches(job, _STILL_LARGER)
    batches = [
        outcome
        for combination, outcome in trials.outcomes.items()
        if combination.options and combination.options[0].risk > USUAL
    ]
    if not options or not batches:
        return []
    before, after = trials.outcomes[Combination(())].prediction.device_bytes, batches[0].prediction.device_bytes
    likely = after + 2 * (after - before)
    return [Combination(tuple(options))] if likely <= batches[0].prediction.limit_bytes else []


def _larger_batches(job: Job, factors: tuple[int, ...]) -> list[Option]:
    if not job.components or job.task != "training":
        return []
    batch = job.effective_sizes["batch"]
    options = []
    for factor in factors:
        larger = batch * factor
        whole = job.gpus.global_batch is not None
        changes = {"gpus.global_batch": larger * job.gpus.count} if whole else {"sizes.batch": larger}
        options.append(
            Option(
                knob="batch",
                text=f"batch {larger:,}",
                changes=changes,
                cost="fewer and larger steps: choose the learning rate anew",
                risk=CHANGES_TRAINING,
            )
        )
    return options


def _more_workers(job: Job) -> list[Option]:
    dataset = job.dataset
    if dataset is None or not dataset.seconds_per_sample:
        return []
    workers = max(2, 2 * dataset.workers)
    return [
        Option(
            knob="data",
            text=f"{workers} loading workers",
            changes={"dataset.workers": workers},
            cost="a process and its memory on the computer for each",
            risk=SAFE,
        )
    ]


def _together(trials: _Trials) -> list[Combination]:
    """The fastest few of those that are thought to fit, one option of a knob: each is taken to multiply memory and time
    as it does alone. What trains something else is left to the reader, but for the batch."""
    alone = {combination.options[0]: outcome for combination, outcome in trials.outcomes.items() if combination.options}
    asked = trials.outcomes[Combination(())]
    usable = [option for option in alone if option.risk <= USUAL or option.knob == "batch"]
    by_knob = {option.knob: [other for other in usable if other.knob == option.knob] for option in usable}

    def gain(options: Iterable[Option]) -> float:
        return prod(alone[option].samples_per_second / max(asked.samples_per_second, 1e-9) for option in options)

    def device_bytes(options: Iterable[Option]) -> float:
        before = asked.prediction.device_bytes
        return before * prod(alone[option].prediction.device_bytes / before for option in options)

    ways: list[list[Option | None]] = [[None, *options] for options in by_knob.values()]
    every = [tuple(option for option in way if option is not None) for way in itertools.product(*ways)]
    likely = [
        way
        for way in every
        if len(way) > 1
        and go_together(way)
        and device_bytes(way) <= asked.prediction.limit_bytes
        and gain(way) > _WORTH * max((gain(way[:i] + way[i + 1 :]) for i in range(len(way))), default=1.0)
    ]
    return [Combination(way) for way in sorted(likely, key=gain, reverse=True)[:_COMBINED]]


class _Trials:
    """What was traced, and what the model refused."""

    def __init__(self, job: Job, runs: Runs) -> None:
        self._job, self._runs = job, runs
        self.outcomes: dict[Combination, Outcome] = {}
        self.refused: list[str] = []

    def attempt(self, combinations: Iterable[Combination]) -> None:
        """Trace them. The job as it is must be possible, or nothing is."""
        combinations = list(combinations)
        jobs = [with_overrides(self._job, combination.changes) for combination in combinations]
        wishes = [
            Wish(job, combination.text or "the job as it is")
            for combination, job in zip(combinations, jobs, strict=True)
        ]
        for combination, job, traced in zip(combinations, jobs, self._runs.trace(wishes), strict=True):
            if not isinstance(traced, VramcastError):
                self.outcomes[combination] = _outcome(combination, job, traced)
            elif not combination.options:
                raise traced
            else:
                self.refused.append(f"{combination.text}: {traced}")


def _outcome(combination: Combination, job: Job, traced: Traced) -> Outcome:
    return Outcome(
        changes=tuple(option.text for option in combination.options),
        costs=tuple(option.cost for option in combination.options),
        overrides=combination.changes,
        prediction=traced.prediction,
        time=traced.time,
        throughput=job_throughput(job, traced.time, job.effective_sizes),
    )
