"""`compare(jobs)`: several jobs, or scenarios of one, side by side against a card."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.base.shown import Shown
from vramcast.features.check.check import card_to_check
from vramcast.features.compare.results import Result, result_of_prediction
from vramcast.features.compare.scenario_results import Scenario, Scenarios
from vramcast.features.compare.side_by_side import Comparison
from vramcast.features.compare.side_by_side import compare as compare_results
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import LoadedJob, load_scenario
from vramcast.jobs.scenarios import USUAL
from vramcast.jobs.schema import Job
from vramcast.memory.module_peaks import forward_peaks
from vramcast.memory.replay import replay
from vramcast.prediction.job_prediction import JobPrediction
from vramcast.prediction.predict import as_loaded, choose_card, predict

AnyJob = Job | LoadedJob | Mapping[str, Any] | str | Path


@dataclass(frozen=True, slots=True, repr=False)
class JobComparison(Shown):
    scenarios: Scenarios
    predictions: Mapping[str, JobPrediction]
    """By name; without those that could not be predicted."""

    def results(self) -> list[Result]:
        """One result for each job, to compare them with measurements line by line."""
        return [job_result(name, prediction) for name, prediction in self.predictions.items()]

    def lines(self) -> Comparison:
        return compare_results(self.results())


def compare(
    jobs: Mapping[str, AnyJob] | Sequence[AnyJob],
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    device: int | None = None,
    *,
    allow_code: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> JobComparison:
    """`jobs` by name, or in order; one job alone is compared with all the scenarios it has. `allow_code`: files that
    `jobs` names may name code to run."""
    read = functools.partial(as_loaded, allow_code=allow_code)
    named = dict(jobs) if isinstance(jobs, Mapping) else named_jobs([read(job) for job in jobs])
    loaded = {name: read(job) for name, job in named.items()}
    if len(loaded) == 1:
        loaded = with_scenarios(*loaded.values())
    first = next(iter(loaded.values()), None)
    if first is None or len(loaded) < 2:
        raise UsageError(
            "give at least two jobs to compare, or one that has scenarios (docs/compare.md), e.g. "
            "vramcast compare ./model '#inference'"
        )
    spec, local = card_to_check(first.job, gpu, memory, device)
    if spec is None:
        spec, _ = choose_card(first.job, None)
    rows: list[Scenario] = []
    predictions: dict[str, JobPrediction] = {}
    failed: CannotPredict | None = None
    for name, job in loaded.items():
        progress(name)
        try:
            result = predict(job, spec, progress=lambda text, name=name: progress(f"{name}: {text}"))  # type: ignore[misc]
            predictions[name] = result
            rows.append(Scenario(name=name, prediction=result.prediction, parameters=result.parameters))
        except CannotPredict as error:
            failed = failed or error
            rows.append(Scenario(name=name, prediction=None, problem=str(error)))
    if failed is not None and not predictions:
        raise failed
    shown = next(iter(predictions.values())).prediction
    return JobComparison(
        Scenarios(tuple(rows), shown.gpu.short_name, shown.limit_bytes, local is not None), predictions
    )


def with_scenarios(loaded: LoadedJob, *, usual: bool = True) -> dict[str, LoadedJob]:
    """The job as it is, and each of its scenarios; where it has none of its own, the usual ones."""
    own = list(loaded.job.scenarios)
    if usual and not own and loaded.job.components:
        return {name: load_scenario(loaded, name) for name in USUAL}
    return {loaded.job.name: loaded} | {name: load_scenario(loaded, name) for name in own}


def named_jobs(jobs: Sequence[LoadedJob]) -> dict[str, LoadedJob]:
    """Jobs by name, or by what was typed where two have the same name."""
    names = [job.job.name for job in jobs]
    labelled: dict[str, LoadedJob] = {}
    for name, job in zip(names, jobs, strict=True):
        label = name if names.count(name) == 1 else (job.where or name)
        while label in labelled:
            label += "'"
        labelled[label] = job
    return labelled


def job_result(name: str, result: JobPrediction) -> Result:
    assert result.trace is not None
    return result_of_prediction(name, result.prediction, forward_peaks(replay(result.trace)))
