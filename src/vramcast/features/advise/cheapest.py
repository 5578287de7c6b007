"""The card that trains a sample for the least money, with prices that the user names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.features.advise.fewest import Fewest, fewest_cards
from vramcast.gpus import GpuSpec, find_gpu
from vramcast.jobs.load import LoadedJob

_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Price:
    gpu: GpuSpec
    per_hour: float
    """Of one card, in whatever money."""


@dataclass(frozen=True, slots=True)
class Offer:
    """As few cards of one kind as hold the job, and what they cost."""

    gpu: GpuSpec
    way: Fewest
    per_hour: float
    """Of all cards."""
    samples_per_second: float

    @property
    def changes(self) -> Mapping[str, Any]:
        return self.way.changes

    @property
    def per_thousand_samples(self) -> float:
        return 1000 * self.per_hour / _HOUR / self.samples_per_second


@dataclass(frozen=True, slots=True)
class Offers:
    ways: tuple[Offer, ...]
    """The cheapest first."""
    nothing_holds: tuple[GpuSpec, ...]
    """Cards of which no number was found that does."""
    traces: int


def read_prices(words: Sequence[str]) -> tuple[Price, ...]:
    """`h100=2.5`, several of them with commas or one by one."""
    prices = []
    for word in (part.strip() for text in words for part in text.split(",")):
        name, equals, amount = word.partition("=")
        try:
            per_hour = float(amount)
        except ValueError:
            per_hour = 0.0
        if not equals or not 0 < per_hour < 1e9:
            raise UsageError(f"--price {word}: write the card and what an hour of it costs, e.g. --price h100=2.5")
        prices.append(Price(find_gpu(name.strip()), per_hour))
    if not prices:
        raise UsageError("--cheapest needs prices: --price h100=2.5 --price a100-80gb=1.6")
    return tuple(prices)


def cheapest(
    loaded: LoadedJob, prices: Sequence[Price], *, workers: int, progress: Callable[[str], None] = lambda text: None
) -> Offers:
    """A card's batch stays as it is, so the price of a sample is compared, not that of a step."""
    offers, traces, without = [], 0, []
    batch = loaded.job.effective_sizes["batch"] * loaded.job.accumulation
    for price in prices:
        found = fewest_cards(loaded, price.gpu, workers=workers, progress=progress)
        traces += found.traces
        timed = [way for way in found.ways if way.time is not None]
        if not timed:
            without.append(price.gpu)
        for way in timed:
            assert way.time is not None
            rate = batch * way.count / way.time.seconds
            offers.append(Offer(price.gpu, way, price.per_hour * way.count, rate))
    return Offers(tuple(sorted(offers, key=lambda one: one.per_thousand_samples)), tuple(without), traces)
