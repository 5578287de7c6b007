"""Smaller sizes that a knob may try: what the knobs sequence, resolution and frames share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vramcast.features.advise.option import CHANGES_TRAINING, Option
from vramcast.jobs.schema import Job

SHARES = (0.75, 0.5)


def smaller(
    job: Job, knob: str, names: Iterable[str], rounded: Callable[[float], int], cost: str, power: int = 1
) -> list[Option]:
    """The sizes `names` at each share of what the job says; sizes that it does not say are left alone.

    A smaller sample is no faster training, so its time counts as that of a whole one."""
    full_sizes = {name: job.sizes[name] for name in names if name in job.sizes}
    options = []
    for share in SHARES if full_sizes else ():
        sizes = {name: rounded(size * share) for name, size in full_sizes.items()}
        if all(0 < size < full_sizes[name] for name, size in sizes.items()):
            text = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            changes = {f"sizes.{name}": size for name, size in sizes.items()}
            options.append(
                Option(
                    knob=knob, text=text, changes=changes, cost=cost, risk=CHANGES_TRAINING,
                    activations_ratio=share**power, sample_share=share**power,
                )
            )  # fmt: skip
    return options
