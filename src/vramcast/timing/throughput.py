"""From the time of a step to samples a second, an epoch and the whole training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Throughput of all cards together."""

    samples_per_second: float
    tokens_per_second: float | None
    """Where a sample is a sequence."""
    epoch_seconds: float | None
    """Where the job says how large its dataset is."""
    total_seconds: float | None


def throughput(
    step_seconds: float,
    *,
    samples_per_step: int,
    tokens_per_sample: int | None = None,
    steps_per_epoch: int | None = None,
    epochs: float | None = None,
) -> Throughput:
    samples = samples_per_step / step_seconds
    epoch = None if steps_per_epoch is None else steps_per_epoch * step_seconds
    return Throughput(
        samples_per_second=samples,
        tokens_per_second=None if tokens_per_sample is None else samples * tokens_per_sample,
        epoch_seconds=epoch,
        total_seconds=None if epoch is None or epochs is None else epoch * epochs,
    )
