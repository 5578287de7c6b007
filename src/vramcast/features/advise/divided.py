"""Layouts in the search of `advise`: what `--fastest` compares, as options and runs that are known already."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from vramcast.base.errors import CannotPredict
from vramcast.features.advise.combination import Combination
from vramcast.features.advise.knobs.gpus import NAME, layout_option
from vramcast.features.advise.layout import Layout, can_be_divided
from vramcast.features.advise.layouts import FastLayout, LayoutSearch
from vramcast.features.advise.option import CHANGES_TRAINING, Option
from vramcast.features.advise.runs import Runs, Traced
from vramcast.features.advise.search import Search
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job
from vramcast.jobs.stage_layers import layer_count


@dataclass(frozen=True, slots=True)
class Divided:
    """How the cards may be used, as the layouts came out."""

    options: tuple[Option, ...]
    traced: tuple[tuple[Layout, Traced], ...] = ()
    """What was run in full."""
    fastest: FastLayout | None = None
    """The fastest that fits, which may be a pipeline."""


def compare_layouts(job: Job, gpu: GpuSpec, runs: Runs, options: Collection[Option], keep: Collection[str]) -> Divided:
    """`options`: those of the knob. Where a layout holds the job, those that the comparison ruled out are left out."""
    if NAME in keep or job.gpus.count == 1 or not has_layers(job):
        return Divided(tuple(options))
    search = LayoutSearch(job, gpu, runs)
    found = search.fastest(most=1)
    same_batch = "batch" in keep or job.gpus.global_batch is not None
    traced = tuple(
        (layout, run)
        for layout, run in search.traced
        if not (layout.splits and same_batch) and not (layout.checkpoints and "checkpointing" in keep)
    )
    fastest = found.ways[0] if found.ways else None
    tried = {option.text: option for layout, _ in traced if (option := layout_option(job, layout)) is not None}
    if fastest is None:
        return Divided(tuple(options), (), None)
    smaller = job.effective_sizes["batch"] > 1 and "batch" not in keep
    kept = [option for option in options if not option.traced or option.text in tried or smaller]
    new = [option for text, option in tried.items() if text not in {option.text for option in kept}]
    return Divided((*kept, *new), traced, fastest)


def known_runs(
    job: Job, divided: Divided, options: Mapping[str, list[Option]]
) -> tuple[list[tuple[Combination, Traced]], frozenset[Option]]:
    """The runs as combinations of options; and the options that were too much for the cards without checkpoints."""
    by_text = {option.text: option for option in options.get(NAME, ())}
    every = next((one for one in options.get("checkpointing", ()) if one.changes == {"checkpointing": "all"}), None)
    known = []
    for layout, traced in divided.traced:
        of_layout = layout_option(job, layout)
        chosen = [every] if layout.checkpoints else []
        chosen += [by_text.get(of_layout.text)] if of_layout is not None else []
        if None not in chosen:
            known.append((Combination(tuple(option for option in chosen if option is not None)), traced))
    alone = {combination.options[0] for combination, _ in known if len(combination.options) == 1}
    together = {option for combination, _ in known for option in combination.options if option.knob == NAME}
    smaller = any(option for option in options.get("batch", ()) if Combination((option,)).batch(job) < _batch(job))
    return known, frozenset() if smaller else frozenset(together - alone)


def next_questions(
    job: Job, divided: Divided, best: Combination | None, asked: Traced, search: Search
) -> tuple[str, ...]:
    """What to ask next: how many cards train the job unchanged, and the pipeline that is faster than what is shown."""
    if job.gpus.count == 1 and not asked.prediction.fits and (best is None or best.risk >= CHANGES_TRAINING):
        fewest = "--fewest-gpus says how many such cards train it as it is, sharded by FSDP"
        return (fewest,) if has_layers(job) else ()
    way = divided.fastest
    if way is None or way.layout.stages == 1:
        return ()
    shown = None if best is None else search.pace.seconds_per_sample(best)
    if shown is not None and shown <= 1 / way.samples_per_second:
        return ()
    return (f"--fastest compares pipelines, too: {way.layout.text} takes {way.step_seconds:.2f} s a step",)


def _batch(job: Job) -> int:
    return int(job.effective_sizes["batch"])


def has_layers(job: Job) -> bool:
    """Whether it trains one model of transformers whose layers are counted, so that small models stand for it."""
    if not can_be_divided(job) or len(job.components) != 1:
        return False
    try:
        layer_count(next(iter(job.components.values())))
    except CannotPredict:
        return False
    return True
