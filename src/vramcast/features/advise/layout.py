"""The ways to divide a job over its cards: replicated, sharded, split, or cut into stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.jobs.schema import Job

_TENSOR, _PIPELINE = (2, 4, 8), (2, 4)
_CHECKPOINTED = {"checkpointing": "all"}


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to divide the job."""

    text: str
    changes: Mapping[str, Any]
    """Dotted key → value, for --set."""

    @property
    def stages(self) -> int:
        return int(self.changes.get("gpus.pipeline", 1))

    @property
    def checkpoints(self) -> bool:
        return "checkpointing" in self.changes

    @property
    def splits(self) -> bool:
        """Layers are split over cards, or dealt out to them."""
        return "gpus.tensor" in self.changes or "gpus.pipeline" in self.changes

    @property
    def keeps_gathered(self) -> bool:
        """A card holds all weights from the forward pass to the end of the backward pass."""
        return self.changes.get("gpus.reshard_after_forward") is False

    @property
    def shards(self) -> int:
        """Over how many cards the optimizer state is spread."""
        count = int(self.changes["gpus.count"])
        copies = {"ddp": count, "hsdp": int(self.changes.get("gpus.replicas", 1))}
        return count // copies.get(str(self.changes.get("gpus.strategy")), 1)


def can_be_divided(job: Job) -> bool:
    """Whether there is a choice: a training whose layers are not split by the job itself."""
    gpus = job.gpus
    known = gpus.effective_strategy in ("none", "ddp", "fsdp", "hsdp") and gpus.tensor == gpus.pipeline == 1
    return job.task == "training" and bool(job.components) and known


def layouts(job: Job) -> Iterator[Layout]:
    """Every way that there is, the plainest first."""
    schemes: dict[str, dict[str, Any]] = {"": {}}
    if job.checkpointing.scope == "none":
        schemes[", checkpointed"] = _CHECKPOINTED
    for ending, checkpointing in schemes.items():
        for text, changes in _divisions(job):
            yield Layout(f"{text}{ending}", {**changes, **checkpointing})


def _divisions(job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    gpus = job.gpus
    count, node = gpus.count, gpus.node_size
    batch, passes = job.effective_sizes["batch"], job.accumulation
    base = {"gpus.count": count, "gpus.per_node": node}
    if count == 1:
        yield "one card", base
        return
    yield "DDP", {**base, "gpus.strategy": "ddp"}
    again = {} if gpus.reshard_after_forward else {"gpus.reshard_after_forward": True}
    yield "FSDP", {**base, "gpus.strategy": "fsdp", **again}
    yield "FSDP, weights kept gathered", {**base, "gpus.strategy": "fsdp", "gpus.reshard_after_forward": False}
    if gpus.nodes > 1 and count % gpus.nodes == 0:
        hybrid = {"gpus.strategy": "hsdp", "gpus.replicas": gpus.nodes}
        yield f"HSDP, {gpus.nodes} replicas", {**base, **hybrid}
    for tensor in _TENSOR:
        if tensor <= node and count % tensor == 0:
            strategy = "fsdp" if count > tensor else "none"
            split = {"gpus.strategy": strategy, "gpus.tensor": tensor, "sizes.batch": batch * tensor}
            yield f"{'FSDP + ' if count > tensor else ''}TP {tensor}, batch {batch * tensor}", {**base, **split}
    for stages in _PIPELINE:
        if count % stages == 0:
            strategy = "fsdp" if count > stages else "none"
            cut = {"gpus.strategy": strategy, "gpus.pipeline": stages, "accumulation": passes * stages}
            name = f"{'FSDP + ' if count > stages else ''}PP {stages}"
            yield f"{name}, {passes * stages} microbatches of {batch}", {**base, **cut}
