"""`what_if(job)`: what becomes of a job with changes, alone and together, each traced. Imports torch when called."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.knobs import check_pins, options_for
from vramcast.features.advise.option import CHANGES_TRAINING, SAFE, USUAL, Option
from vramcast.features.what_if.result import Outcome, WhatIfs
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job
from vramcast.prediction.predict import as_loaded, choose_card, predict

Progress = Callable[[str], None]

_KNOBS = ("batch", "checkpointing", "precision", "optimizer")
"""Those that change how fast a step is; the others only save memory."""
_OPTIONS_OF_A_KNOB = 2
_COMBINED = 4
"""Combinations of two or more that are traced."""
_WORTH = 1.01


def what_if(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    *,
    keep: Iterable[str] = (),
    steps: int = 3,
    allow_code: bool = False,
    progress: Progress = lambda text: None,
) -> WhatIfs:
    """Memory, step time and throughput of `job` with each change that suits it, and with the best of them together.

    `keep` names knobs that are left alone. `allow_code`: a file that `job` names may name code to run.
    """
    keep = tuple(keep)
    check_pins(keep)
    loaded = as_loaded(job, allow_code=allow_code)
    card, _ = choose_card(loaded.job, gpu)
    trials = _Trials(loaded, card, memory, steps, progress)
    asked = trials.outcome(Combination(()))
    options = _options(loaded.job, card, keep)
    alone = {option: tried for option in options if (tried := trials.attempt(Combination((option,))))}
    helps = [
        option
        for option, outcome in alone.items()
        if outcome.prediction.fits
        and outcome.samples_per_second > _WORTH * asked.samples_per_second
        and (option.risk <= USUAL or option.knob == "batch")
    ]
    together = [outcome for combination in _together(helps, alone) if (outcome := trials.attempt(combination))]
    outcomes = [*alone.values(), *together]
    ordered = sorted(
        outcomes, key=lambda outcome: (not outcome.prediction.fits, -outcome.samples_per_second, len(outcome.changes))
    )
    return WhatIfs(
        job=loaded.job.name,
        recognised_as=loaded.recognised_as,
        asked=asked,
        outcomes=tuple(ordered),
        refused=tuple(trials.refused),
    )


def _options(job: Job, gpu: GpuSpec, keep: tuple[str, ...]) -> list[Option]:
    unwanted = {*keep, *(name for name in _all_knobs() if name not in _KNOBS)}
    chosen = []
    for name, options in options_for(job, gpu, unwanted).items():
        # Accumulation only ever costs time: of the batches that keep the effective one, the larger ones.
        usable = [option for option in options if name != "batch" or option.time < 1]
        usable.sort(key=lambda option: option.time)
        chosen += usable if name == "optimizer" else usable[:_OPTIONS_OF_A_KNOB]
    if "batch" not in keep:
        chosen += _larger_batches(job)
    return [*chosen, *_more_workers(job)]


def _all_knobs() -> tuple[str, ...]:
    from vramcast.features.advise.knobs import KNOBS

    return KNOBS


def _larger_batches(job: Job) -> list[Option]:
    if not job.components or job.task != "training":
        return []
    batch = job.effective_sizes["batch"]
    options = []
    for factor in (2, 4):
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


def _together(helps: list[Option], alone: Mapping[Option, Outcome]) -> list[Combination]:
    """The best of each knob together, and its parts; of one knob only one option can be taken. What trains something
    else is left to the reader."""
    ranked = sorted(helps, key=lambda option: -alone[option].samples_per_second)
    best: dict[str, Option] = {}
    for option in ranked:
        best.setdefault(option.knob, option)
    options = list(best.values())
    sizes = range(len(options), 1, -1)
    every = [Combination(chosen) for size in sizes for chosen in itertools.combinations(options, size)]
    return every[:_COMBINED]


class _Trials:
    def __init__(
        self, loaded: LoadedJob, gpu: GpuSpec, memory: str | int | None, steps: int, progress: Progress
    ) -> None:
        self._loaded, self._gpu, self._memory, self._steps = loaded, gpu, memory, steps
        self._progress = progress
        self.refused: list[str] = []

    def attempt(self, combination: Combination) -> Outcome | None:
        """None where the model cannot do it; the reason is kept."""
        try:
            return self.outcome(combination)
        except VramcastError as error:
            self.refused.append(f"{combination.text}: {error}")
            return None

    def outcome(self, combination: Combination) -> Outcome:
        self._progress(f"tracing {combination.text or 'the job as it is'}")
        job = with_overrides(self._loaded.job, combination.changes)
        result = predict(job, self._gpu, self._memory, self._steps)
        return Outcome(
            changes=tuple(option.text for option in combination.options),
            costs=tuple(option.cost for option in combination.options),
            overrides=combination.changes,
            prediction=result.prediction,
            time=result.time,
            throughput=result.throughput,
        )
