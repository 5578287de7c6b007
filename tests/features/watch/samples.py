"""Samples that no card has to give."""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.base.units import GIB
from vramcast.features.watch.sample import CardSample, Sample
from vramcast.gpus.survey import GpuProcess

START = 1_760_000_000.0


def card(gib: float, *, index: int = 0, total: float = 24, others: float = 0, basis: str = "processes") -> CardSample:
    used = int((gib + others) * GIB)
    trainer = GpuProcess(4242, "python", int(gib * GIB), user="ada")
    return CardSample(
        index=index, name="NVIDIA GeForce RTX 4090", total_bytes=int(total * GIB), used_bytes=used,
        free_bytes=int(total * GIB) - used, watched_bytes=used if basis == "card" else int(gib * GIB), basis=basis,
        busy_percent=97, temperature_celsius=64, processes=(trainer, GpuProcess(77, "", None)), watched_pids=(4242,),
    )  # fmt: skip


def samples(gibs: Iterable[float], interval: float = 1.0, **more: float) -> list[Sample]:
    return [
        Sample(time=START + i * interval, seconds=i * interval, cards=(card(gib, **more),))  # type: ignore[arg-type]
        for i, gib in enumerate(gibs)
    ]


def training_run() -> list[float]:
    """Loading, a first step, then steps with a higher peak each time their backward pass ends."""
    return [0, 0.5, 2, 4, 4, *(6 + 3 * (i % 5) for i in range(50)), 20.5, *(6 + 3 * (i % 5) for i in range(20))]
