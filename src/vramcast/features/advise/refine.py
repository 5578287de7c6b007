"""A suggestion that checkpoints every block, with only as many as the memory asks for."""

from __future__ import annotations

from vramcast.features.advise.combination import Combination
from vramcast.features.advise.front import FASTER
from vramcast.features.advise.option import Option
from vramcast.features.advise.runs import Traced
from vramcast.features.advise.search import Search
from vramcast.features.advise.subset import Subsets
from vramcast.jobs.load import with_overrides
from vramcast.jobs.own_checkpointing import checkpointed_now
from vramcast.memory.cards import MARGIN, with_margin


def refine(search: Search, chosen: list[Combination]) -> list[Combination]:
    """The first that checkpoints every block checkpoints only as many as the memory asks for."""
    if checkpointed_now(search.job) != "none":
        return chosen  # blocks are chosen among those that keep everything
    for place, one in enumerate(chosen):
        plain = one.without("checkpointing")
        batch = one.batch(search.job)
        alike = [other for other in search.found if _alike(other, plain)]
        kept = min(alike, key=lambda other: abs(other.batch(search.job) - batch), default=None)
        every = next((option for option in one.options if option.changes == {"checkpointing": "all"}), None)
        if every is None or kept is None:
            continue
        better = _subset(search, one, plain, kept, every)
        if better is not None:
            rest = [other for other in chosen[place + 1 :] if search.time(other) <= search.time(better) * FASTER]
            return [*chosen[:place], better, *rest]
        break
    return chosen


def _alike(one: Combination, other: Combination) -> bool:
    """They keep the same activations for a sample."""
    return (
        one.traced_knobs == other.traced_knobs
        and one.activations_ratio == other.activations_ratio
        and one.thinned == other.thinned
    )


def _subset(
    search: Search, one: Combination, plain: Combination, kept: Combination, every: Option
) -> Combination | None:
    left = search.found[one].prediction
    comfortable = with_margin(left.device_bytes) <= search.limit_bytes

    def fits(traced: Traced) -> bool:
        found = traced.prediction
        return found.fits and (not comfortable or with_margin(found.device_bytes) <= search.limit_bytes)

    room_bytes = round(search.limit_bytes / (1 + MARGIN)) if comfortable else search.limit_bytes
    subset = Subsets(search.runs).best(
        with_overrides(search.job, plain.changes), fits, room_bytes - left.context_bytes, search.found[kept],
        kept.batch(search.job), search.found[one],
    )  # fmt: skip
    if subset is None or len(subset.names) == subset.of:
        return None
    if not subset.names:  # none needs it after all
        search.keep(plain, subset.traced)
        return plain
    time = min(subset.time, every.time)
    slower = f"{time - 1:.0%}".replace("%", " %")
    option = Option(
        knob=every.knob,
        text=f"checkpoint {len(subset.names)} of {subset.of} blocks",
        changes=subset.changes,
        cost=f"a step takes about {slower} longer, by what these blocks compute; the result is the same",
        time=time,
        traced=True,
    )
    better = Combination(tuple(option if before is every else before for before in one.options))
    search.keep(better, subset.traced)
    return better
