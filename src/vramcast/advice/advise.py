"""`advise(job)`: what to change so that it fits, each suggestion traced. torch is imported when it is called."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.advice.combination import Combination
from vramcast.advice.config import config_text
from vramcast.advice.knobs import check_pins, options_for
from vramcast.advice.option import RISKS
from vramcast.advice.search import OBJECTIVES, Search
from vramcast.advice.write import check_new_file, write_config
from vramcast.errors import UsageError
from vramcast.gpus import GpuSpec, all_gpus
from vramcast.jobs.check import card_to_check
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.run import as_loaded, choose_card, predict
from vramcast.jobs.schema import Job
from vramcast.memory.advice import Advice, Change, Suggestion
from vramcast.memory.cards import CardFit, card_fits

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JobAdvice:
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

    def to_document(self) -> dict[str, Any]:
        """As `vramcast advise --json` prints it."""
        from vramcast.report.advice import advice_document

        return advice_document(self.advice)

    def _repr_html_(self) -> str:
        from vramcast.report.advice import advice_page
        from vramcast.report.page import page_html

        return page_html(advice_page(self.advice))


def advise(
    job: Job | LoadedJob | Mapping[str, Any] | str | Path,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    device: int | None = None,
    *,
    keep: Iterable[str] = (),
    objective: str = OBJECTIVES[0],
    write: str | Path | None = None,
    steps: int = 3,
    progress: Progress = lambda text: None,
) -> JobAdvice:
    """What to change in `job` so that it fits `gpu`, `memory`, or what is free on card `device` (as in `check`).

    `keep` names knobs that are left alone. Batch × GPUs × accumulation always stays what it is.
    """
    pins = tuple(dict.fromkeys(keep))
    check_pins(pins)
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective}: write one of {', '.join(OBJECTIVES)}")
    loaded = as_loaded(job)
    if write is not None:
        check_new_file(Path(write), loaded)
    spec, local = card_to_check(loaded.job, gpu, memory, device)
    card = spec if spec is not None else choose_card(loaded.job, None)[0]
    asked = predict(loaded, card, steps=steps, progress=progress)
    search = Search(
        job=loaded.job,
        gpu=card,
        options=options_for(loaded.job, card, pins),
        objective=objective,
        steps=steps,
        progress=progress,
        asked=asked.prediction,
    )
    named = card_options(gpu, memory, device, card)

    def made(one: Combination) -> Suggestion:
        return _suggestion(loaded, search, one, named)

    best = search.best()
    smallest = None if best else search.smallest()
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
        combinations=search.combinations,
        traces=search.n_traced,
        refused=tuple(f"{text}: {why}" for text, why in search.estimates.refused.items()),
    )
    found = JobAdvice(advice, loaded)
    if write is not None and best:
        found.write(write)
    return found


def _suggestion(loaded: LoadedJob, search: Search, one: Combination, card: str) -> Suggestion:
    job = with_overrides(loaded.job, one.changes)
    batch = job.effective_sizes["batch"]
    return Suggestion(
        changes=tuple(Change(knob=o.knob, text=o.text, cost=o.cost, risk=RISKS[o.risk]) for o in one.options),
        overrides=one.changes,
        prediction=search.found[one],
        batch=batch,
        accumulation=job.accumulation,
        samples_per_step=batch * job.accumulation * job.gpus.count,
        time_factor=one.time,
        config=config_text(loaded, one.changes, card),
    )


def _smallest_card(search: Search, one: Combination) -> CardFit | None:
    trace = search.found[one].trace
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
