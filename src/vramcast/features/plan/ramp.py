"""The runs of a ramp-up, smallest first: what each changes in the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vramcast.jobs.editing.rewrite import rewrite
from vramcast.jobs.equality import same_run
from vramcast.jobs.load import LoadedJob, with_overrides
from vramcast.jobs.schema import Job

_BATCH_STEPS = 4
"""From one sample to the batch that is wished for."""
_GRAINS = {"sequence": 64, "height": 32, "width": 32}
"""Smaller sizes stay multiples of these: heads, windows and autoencoders need them."""


@dataclass(frozen=True, slots=True)
class Rung:
    name: str
    changes: Mapping[str, Any]


def rungs(loaded: LoadedJob) -> list[Rung]:
    """From a small run on one GPU to the job as it is, which is the last."""
    job = loaded.job
    if not job.components and not job.sizes:
        return [Rung("as it is", {})]
    batch, plain = job.effective_sizes["batch"], _plain(job)
    together = {} if job.gpus.count == 1 else _on_one_gpu(loaded)
    where = " on one GPU" if together else ""
    ladder: list[Rung] = []
    small = _half(job)
    if small:
        sizes = ", ".join(f"{name} {size:,}" for name, size in small.items())
        changes = {f"sizes.{name}": size for name, size in small.items()}
        ladder.append(Rung(f"one sample of {sizes}{where}", {**_batch(job, 1, together), **plain, **changes}))
    ladder.append(Rung(f"one sample{where}", {**_batch(job, 1, together), **plain}))
    if together:
        ladder.append(Rung(f"one sample on each of {job.gpus.count} GPUs", {**_batch(job, 1, {}), **plain}))
    for size in _ladder(batch):
        ladder.append(Rung(f"batch {size:,}", {**_batch(job, size, {}), **plain}))
    ladder.append(Rung("as it is", {}))
    return _without_repeats(job, ladder)


def _plain(job: Job) -> dict[str, Any]:
    """What comes last: several passes a step, and evaluation."""
    return {
        **({"accumulation": 1} if job.accumulation > 1 else {}),
        **({"evaluation": None} if job.evaluation is not None else {}),
    }


def _batch(job: Job, size: int, together: Mapping[str, Any]) -> dict[str, Any]:
    if job.gpus.global_batch is not None:
        return {**together, "gpus.global_batch": size * int(together.get("gpus.count", job.gpus.count))}
    return {**together, **({"sizes.batch": size} if size != job.effective_sizes["batch"] else {})}


def _on_one_gpu(loaded: LoadedJob) -> dict[str, Any]:
    """With the strategy as it is, or without one, whichever the user's own files can say."""
    job = loaded.job
    ways: list[dict[str, Any]] = [{"gpus.count": 1}, {"gpus.count": 1, "gpus.strategy": "none"}]

    def unsaid(way: dict[str, Any]) -> int:
        return len(rewrite(loaded, _batch(job, 1, way)).beside)

    return min(ways, key=unsaid)


def _ladder(batch: int) -> list[int]:
    """At most a few batches above one, each a power of two times the one before it, up to the wished one."""
    doublings = max(0, (batch - 1).bit_length())
    stride = -(-doublings // _BATCH_STEPS) or 1
    below = [2**power for power in range(stride, doublings, stride) if 2**power < batch]
    return [*below, batch] if batch > 1 else []


def _half(job: Job) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, grain in _GRAINS.items():
        size = job.sizes.get(name, 0) // 2 // grain * grain
        if size:
            sizes[name] = size
    if "frames" in job.sizes:
        frames = _fewer_frames(job.sizes["frames"])
        sizes |= {"frames": frames} if frames else {}
    return sizes


def _fewer_frames(frames: int) -> int:
    """4 n + 1 stays 4 n + 1, which autoencoders of videos need; even stays even."""
    rounded: Callable[[int], int] = (lambda n: n // 4 * 4 + 1) if frames % 4 == 1 else (lambda n: n // 2 * 2)
    half = rounded(frames // 2)
    return half if 0 < half < frames else 0


def _without_repeats(job: Job, ladder: list[Rung]) -> list[Rung]:
    """Runs that are the same as the next are left out."""
    jobs = [with_overrides(job, rung.changes) for rung in ladder]
    return [rung for i, rung in enumerate(ladder) if i + 1 == len(ladder) or not same_run(jobs[i], jobs[i + 1])]
