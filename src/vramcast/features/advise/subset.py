"""The blocks to checkpoint for the memory at hand: those with the least time to compute again that make it fit.

At the end of the forward pass every block keeps its activations, or only what its successor was given. In the backward
pass a block has all of its own once more, while those before it still keep theirs. Both must fit; which blocks are
cheapest under that is a knapsack, solved exactly. How much lies beside the blocks is learnt from real traces, and the
answer is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.features.advise.blocks import Block, block_names, blocks_of, forward_seconds, passes_bytes
from vramcast.features.advise.runs import Runs, Traced, Wish
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job

_TRIES = 4
"""Traces of subsets that are the fastest for some room."""
_FEW = 10
"""With at most this many blocks, every subset can be considered, and traced while traces are cheap."""
_LEAST_TRIES, _MOST_TRIES = 2, 24
_EVENTS = 200_000
"""A trace with at most this many events is cheap."""
_WORTH = 0.002
"""A better subset is looked for as long as it may save this share of a step."""
_WORTH_A_LONG_TRACE = 0.08
"""Where traces take long, it must save this share of a step to be looked for at all."""
_STATES = 4000
"""Partial choices that are followed at a time."""


@dataclass(frozen=True, slots=True)
class Subset:
    names: tuple[str, ...]
    """Names of the blocks that are checkpointed."""
    of: int
    """How many blocks there are."""
    time: float
    """Time of a step relative to one without checkpointing."""
    traced: Traced

    @property
    def changes(self) -> dict[str, Any]:
        return {"checkpointing": checkpointed(self.names)}


def checkpointed(names: Sequence[str]) -> dict[str, Any] | str:
    """The value of the job's `checkpointing`."""
    return {"scope": "modules", "modules": _patterns(names)} if names else "none"


def _patterns(names: Sequence[str]) -> list[str]:
    """Patterns for exactly these names, which end with a number: layers.[0-4], layers.1[02]."""
    digits: dict[str, set[int]] = {}
    for name in names:
        digits.setdefault(name[:-1], set()).add(int(name[-1]))
    return [f"{stem}[{_ranges(sorted(last))}]" for stem, last in digits.items()]


def _ranges(digits: list[int]) -> str:
    text = ""
    for digit in digits:
        before, after = digit - 1 in digits, digit + 1 in digits
        if not (before and after):
            text += f"-{digit}" if before and digit - 2 in digits else str(digit)
    return text


def component_of(job: Job) -> str | None:
    """The component that is trained, where there is only one."""
    trained = [name for name, part in job.components.items() if part.is_trained]
    return trained[0] if len(trained) == 1 and job.components[trained[0]].checkpointing is None else None


class Subsets:
    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def best(
        self, job: Job, fits: Callable[[Traced], bool], capacity_bytes: int, kept: Traced, kept_batch: int,
        left: Traced | None = None,
    ) -> Subset | None:  # fmt: skip
        """The fastest subset for `job`, which has no checkpointing, among those that pass `fits`.

        `capacity_bytes` is what PyTorch may reserve. `kept` is a trace without checkpointing at the batch `kept_batch`,
        all else the same; `left` one of the job with all blocks checkpointed. None: it has no blocks, or nothing that
        was tried fits.
        """
        component = component_of(job)
        names = block_names(kept, component) if component is not None else []
        time = kept.time
        if component is None or time is None or len(names) < 2:
            return None
        every = tuple(names)
        if left is None:
            (left,) = self._trace(job, [every])
            if left is None:
                return None
        scale = job.effective_sizes["batch"] / kept_batch
        blocks = blocks_of(kept, left, component, scale, forward_seconds(time))
        model = _BlockModel(blocks, time.seconds, job.accumulation > 1)
        # What lies beside the blocks is about the same for all subsets; fragmentation is only known from traces.
        beside_bytes = passes_bytes(left) - model.highest_bytes(every)
        if scale == 1:
            beside_bytes = min(beside_bytes, passes_bytes(kept) - model.highest_bytes(()))
        lost_bytes = left.prediction.peak_reserved_bytes - left.prediction.peak_allocated_bytes
        search = _Search(
            model=model,
            trace=lambda choices: self._trace(job, choices),
            fits=fits,
            at_once=self._runs.workers,
            room_bytes=capacity_bytes - beside_bytes,
            likely_bytes=[
                capacity_bytes - beside_bytes - lost_bytes,
                left.prediction.peak_allocated_bytes - beside_bytes,
            ],
        )
        search.traced[every] = left if fits(left) else None
        trace = left.prediction.trace
        tries = max(_LEAST_TRIES, min(_MOST_TRIES, _EVENTS // max(1, trace.n_events if trace is not None else _EVENTS)))
        likely = model.cheapest(search.likely_bytes[0])
        if tries <= _TRIES and likely is not None and model.time(every) - model.time(likely) < _WORTH_A_LONG_TRACE:
            return None
        search.bisect(min(_TRIES, tries))
        if len(names) <= _FEW and tries > _TRIES:
            search.improve(tries)
        best = search.best()
        if best is None:
            return None
        traced = search.traced[best]
        assert traced is not None
        return Subset(best, len(every), model.time(best), traced)

    def _trace(self, job: Job, choices: Sequence[Sequence[str]]) -> list[Traced | None]:
        wishes = []
        for names in choices:
            changed = with_overrides(job, {"checkpointing": checkpointed(names)})
            wishes.append(Wish(changed, f"{len(names)} blocks checkpointed"))
        return [None if isinstance(result, VramcastError) else result for result in self._runs.trace(wishes)]


@dataclass
class _Search:
    """Finds the fastest subset that fits, from real traces of some subsets."""

    model: _BlockModel
    trace: Callable[[Sequence[Sequence[str]]], list[Traced | None]]
    fits: Callable[[Traced], bool]
    at_once: int
    room_bytes: int
    """What the blocks may hold without any fragmentation; more cannot fit."""
    likely_bytes: list[int]
    """The same with as much fragmentation as with all blocks checkpointed; and what costs nothing, because the
    optimizer needs as much anyway."""
    traced: dict[tuple[str, ...], Traced | None] = field(default_factory=dict)
    """Those that were traced; None: it does not fit."""

    def best(self) -> tuple[str, ...] | None:
        fitting = [names for names, traced in self.traced.items() if traced is not None]
        return min(fitting, key=self.model.time, default=None)

    def bisect(self, tries: int) -> None:
        """Bisect the subsets that are the fastest for some amount of memory: the more memory, the faster."""
        low, high = self.model.highest_bytes(max(self.traced, key=len)), self.room_bytes + 1
        waiting = [max(low, room) for room in self.likely_bytes]
        while tries > 0 and low < high:
            rooms = [room for room in waiting if low <= room < high][: self.at_once]
            waiting = [room for room in waiting if room not in rooms]
            if not rooms:
                rooms = [low + (high - low) * (i + 1) // (self.at_once + 1) for i in range(self.at_once)]
            choices = {room: self.model.cheapest(room) for room in rooms}
            while len(set(choices.values())) < self.at_once and min(rooms) > low:
                # An idle process tries half of the way to what is known to fit.
                rooms.append((low + min(rooms)) // 2)
                choices[rooms[-1]] = self.model.cheapest(rooms[-1])
            new = list(
                dict.fromkeys(choice for choice in choices.values() if choice is not None and choice not in self.traced)
            )
            self._try(new[:tries])
            tries -= len(new)
            for room, choice in choices.items():
                if choice is not None and self.traced.get(choice) is not None:
                    low = max(low, room + 1)
                else:
                    high = min(high, room)
            slower, faster = self.model.cheapest(low), self.model.cheapest(high - 1)
            if slower == faster and slower in self.traced:
                return

    def improve(self, tries: int) -> None:
        """Try the other subsets that would be faster, those that need the least first. Less checkpointing may fit where
        more did not: fragmentation is not monotonic."""
        candidates = sorted(
            (names for names in self.model.all_subsets() if self.model.highest_bytes(names) <= self.room_bytes),
            key=lambda names: (self.model.highest_bytes(names), self.model.time(names)),
        )
        for names in candidates:
            best = self.best()
            if len(self.traced) > tries:
                return
            too_slow = best is not None and self.model.time(names) > self.model.time(best) - _WORTH
            if names not in self.traced and not too_slow:
                self._try([names])

    def _try(self, choices: Sequence[tuple[str, ...]]) -> None:
        for names, traced in zip(choices, self.trace(choices), strict=True):
            self.traced[names] = traced if traced is not None and self.fits(traced) else None


@dataclass(frozen=True, slots=True)
class _BlockModel:
    blocks: list[Block]
    step_seconds: float
    accumulates: bool

    def time(self, names: Sequence[str]) -> float:
        again = sum(block.seconds for block in self.blocks if block.name in names)
        return 1 + again / self.step_seconds

    def highest_bytes(self, names: Sequence[str]) -> int:
        """The highest level of what the blocks hold."""
        state = _State()
        for block, grown in zip(self.blocks, self._grown(), strict=True):
            state = state.after(block, grown, again=block.name in names)
        return max(state.peak_bytes, state.held_bytes)

    def _grown(self) -> list[int]:
        """Gradients that exist when the backward pass reaches each block; accumulated ones exist before."""
        grown, total = [], 0
        for block in reversed(self.blocks):
            total += 0 if self.accumulates else block.gradients_bytes
            grown.append(total)
        return grown[::-1]

    def all_subsets(self) -> list[tuple[str, ...]]:
        names = [block.name for block in self.blocks]
        return [chosen for n in range(len(names) + 1) for chosen in itertools.combinations(names, n)]

    def cheapest(self, room_bytes: int) -> tuple[str, ...] | None:
        """The blocks to checkpoint so that the model stays within `room_bytes`, at the least time."""
        states = [_State()]
        for block, grown in zip(self.blocks, self._grown(), strict=True):
            new = [state.after(block, grown, again=again) for state in states for again in (False, True)]
            states = _undominated(state for state in new if state.peak_bytes <= room_bytes)
        fitting = [state for state in states if state.held_bytes <= room_bytes]
        if not fitting:
            return None
        best = min(fitting, key=lambda state: (state.seconds, state.held_bytes))
        return tuple(block.name for block, again in zip(self.blocks, best.chosen, strict=True) if again)


@dataclass(frozen=True, slots=True)
class _State:
    """The state after some of the blocks."""

    held_bytes: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    """When the backward pass comes back to the block that needs the most."""
    chosen: tuple[bool, ...] = ()

    def after(self, block: Block, grown_bytes: int, *, again: bool) -> _State:
        held = self.held_bytes + (block.left_bytes if again else block.kept_bytes)
        here = self.held_bytes + max(block.kept_bytes, block.left_bytes) + grown_bytes
        seconds = self.seconds + (block.seconds if again else 0.0)
        return _State(held, seconds, max(self.peak_bytes, here), (*self.chosen, again))


def _undominated(states: Iterable[_State]) -> list[_State]:
    """Without states that hold as much as another and take longer; thinned out where there are too many."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda state: (state.held_bytes, state.seconds)):
        if not kept or state.seconds < kept[-1].seconds - 1e-15:
            kept.append(state)
    if len(kept) <= _STATES:
        return kept
    return [kept[i * (len(kept) - 1) // (_STATES - 1)] for i in range(_STATES)]
