"""A part of what is trained stays as it is: one component of several, embeddings, or the first half of the blocks."""

from __future__ import annotations

from typing import Any

from vramcast.features.advise.language_models import block_patterns, embedding_patterns, single_language_model
from vramcast.features.advise.option import LAST_RESORT, Option
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

NAME = "freezing"


def options(job: Job, gpu: GpuSpec) -> list[Option]:
    if job.task != "training":
        return []
    trained = [name for name, part in job.components.items() if part.mode == "trained" and part.same_as is None]
    shared = {part.same_as for part in job.components.values() if part.same_as is not None}
    named = {name for wish in job.optimizer for name in wish.components or ()}
    named |= set(job.ema.components or ()) if job.ema is not None else set()
    choices = []
    if len(trained) > 1:
        for name in trained:
            if name not in shared | named:
                cost = f"{name} is not trained any more"
                choices.append(_option(f"freeze {name}", {f"components.{name}.mode": "frozen"}, cost, 0.5))
        return choices
    part = single_language_model(job)
    if part is None or part.freeze or part.train_only:
        return choices
    key = f"components.{trained[0]}.freeze"
    blocks = block_patterns(part)
    if blocks:
        half = blocks[: len(blocks) // 2]
        cost = "the first half of the blocks keeps its weights: enough for fine-tuning, not for training from scratch"
        choices.append(_option(f"freeze the first {len(half)} blocks", {key: half}, cost, 0.5))
    embeddings = embedding_patterns(part)
    if embeddings:
        cost = "embeddings, and a head that shares their weights, are not trained any more"
        choices.append(_option("freeze the embeddings", {key: embeddings}, cost, 0.8))
    return choices


def _option(text: str, changes: dict[str, Any], cost: str, state_ratio: float) -> Option:
    return Option(
        knob=NAME,
        text=text,
        changes=changes,
        cost=cost,
        risk=LAST_RESORT,
        state_ratio=state_ratio,
        excludes=("trained",),
    )
