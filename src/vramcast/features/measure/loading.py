"""How long a job's own DataLoader takes by itself: nothing trains meanwhile, so nothing hides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader

_MOST_BATCHES = 64
_MOST_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    seconds_per_batch: float
    """With the workers it has, once they run."""
    batches: int
    """Timed."""
    workers: int
    batch: int | None
    """Samples in one; None where the loader does not say it."""
    samples: int | None
    """In the dataset; None where it has no length."""
    seconds_per_sample: float | None
    """In one process."""
    seconds_per_step: float
    """To load what one optimizer step takes."""
    workers_needed: int | None
    """So many load a step's samples in the time that the step takes."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def time_loader(
    loader: DataLoader[Any],
    *,
    step_seconds: float,
    batches_per_step: int = 1,
    clock: Callable[[], float] = perf_counter,
    most_batches: int = _MOST_BATCHES,
    most_seconds: float = _MOST_SECONDS,
) -> Loading | None:
    """A new pass over `loader`, from its beginning; None where that has too few batches to say anything."""
    workers = loader.num_workers
    most_batches = max(most_batches, 2 * workers)
    arrivals: list[float] = []
    begun = clock()
    # Libraries wrap the loader to move batches to the card; PyTorch's own iterator only loads.
    for _ in DataLoader.__iter__(loader):
        arrivals.append(clock())
        if len(arrivals) > most_batches or (arrivals[-1] - begun > most_seconds and len(arrivals) > max(1, workers)):
            break
    seconds = seconds_per_batch(arrivals, workers)
    if seconds is None:
        return None
    batch = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    in_one_process = seconds * max(1, workers)
    return Loading(
        seconds_per_batch=seconds,
        batches=len(arrivals) - 1,
        workers=workers,
        batch=batch,
        samples=_samples(loader),
        seconds_per_sample=None if not batch else in_one_process / batch,
        seconds_per_step=seconds * batches_per_step,
        workers_needed=math.ceil(in_one_process * batches_per_step / step_seconds) if step_seconds else None,
    )


def seconds_per_batch(arrivals: Sequence[float], workers: int) -> float | None:
    """Workers deliver in bursts of as many as there are: whole rounds are counted, the first batch being the start."""
    in_a_round = max(1, workers)
    rounds = (len(arrivals) - 1) // in_a_round
    if rounds < 1:
        return None
    return (arrivals[rounds * in_a_round] - arrivals[0]) / (rounds * in_a_round)


def _samples(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
