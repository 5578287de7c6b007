"""Improve a suggestion that checkpoints every block: checkpoint only as many as the memory requires."""

from __future__ import annotations

from vramcast.features.advise.combination import Combination
from vramcast.features.advise.front import FASTER
from vramcast.features.advise.option import Option
from vramcast.features.advise.runs import Traced
from vramcast.features.advise.search import Search
from vramcast.features.advise.subset import Subsets
from vramcast.jobs.load import with_overrides
from vramcast.jobs.own_checkpointing import checkpointed_now


def refine(search: Search, chosen: list[Combination]) -> list[Combination]:
    """Let the first suggestion that checkpoints every block checkpoint only as many as the memory requires."""
    if checkpointed_now(search.job) != "none":
        return chosen  # blocks are chosen among those that keep everything
    for place, combination in enumerate(chosen):
        plain = combination.without("checkpointing")
        batch = combination.batch(search.job)
        alike = [other for other in search.traced if _alike(other, plain)]
        kept = min(alike, key=lambda other: abs(other.batch(search.job) - batch), default=None)
        every = next((option for option in combination.options if option.changes == {"checkpointing": "all"}), None)
        if every is None or kept is None:
            continue
        better = _subset(search, combination, plain, kept, every)
        if better is not None:
            rest = [other for other in chosen[place + 1 :] if search.time(other) <= search.time(better) * FASTER]
            return [*chosen[:place], better, *rest]
        break
    return chosen


def _alike(combination: Combination, other: Combination) -> bool:
    """Whether they keep the same activations for a sample."""
    return (
        combination.traced_knobs == other.traced_knobs
        and combination.activations_ratio == other.activations_ratio
        and combination.thinned == other.thinned
    )


def _subset(
    search: Search, combination: Combination, plain: Combination, kept: Combination, every: Option
) -> Combination | None:
    left = search.traced[combination].prediction
    comfortable = left.with_margin_bytes <= search.limit_bytes

    def fits(traced: Traced) -> bool:
        prediction = traced.prediction
        return prediction.fits and (not comfortable or prediction.with_margin_bytes <= search.limit_bytes)

    room_bytes = left.margin.within(search.limit_bytes) if comfortable else search.limit_bytes
    subset = Subsets(search.runs).best(
        with_overrides(search.job, plain.changes), fits, room_bytes - left.context_bytes, search.traced[kept],
        kept.batch(search.job), search.traced[combination],
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
    better = Combination(tuple(option if before is every else before for before in combination.options))
    search.keep(better, subset.traced)
    return better
