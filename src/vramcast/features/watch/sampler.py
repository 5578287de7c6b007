"""From surveys of the cards to samples: which card, which processes, and what of the memory is theirs."""

from __future__ import annotations

import time
from collections.abc import Callable

from vramcast.base.errors import UsageError
from vramcast.features.watch.process_tree import ProcessTree
from vramcast.features.watch.sample import CardSample, Sample
from vramcast.gpus.survey import LocalGpu, Survey


class Sampler:
    """Call `sample` as often as wanted.

    `tree` is what is watched; without one it is the whole card. Where the driver names none of its processes (in most
    containers), what the card has grown by since the start stands for a command that was started after it, and all that
    is used on the card for processes that ran before.
    """

    def __init__(
        self,
        look: Callable[[], Survey],
        *,
        device: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._look = look
        self._device = device
        self._clock = clock
        self._tree: ProcessTree | None = None
        self._was_named = False
        first = look()
        self._check(first)
        self._at_start = {card.uuid: card.used_bytes for card in first.cards}
        self._grown_from_start = False
        self._began = clock()

    def watch_processes(self, tree: ProcessTree, *, started_here: bool) -> None:
        """`started_here`: nothing of it was there when the sampler was made."""
        self._tree = tree
        self._grown_from_start = started_here

    def sample(self) -> Sample:
        survey = self._look()
        pids = self._tree.members() if self._tree is not None else frozenset()
        now = self._clock()
        return Sample(
            time=now,
            seconds=max(0.0, now - self._began),
            cards=tuple(self._card(card, pids) for card in survey.cards if self._is_wanted(card)),
            problems=tuple(
                f"card {problem.index} (as nvidia-smi counts): {problem.text}" for problem in survey.problems
            ),
        )

    def _check(self, survey: Survey) -> None:
        if not survey.cards:
            raise UsageError(f"no NVIDIA GPU here to watch: {survey.why_none}; --replay draws a recorded log")
        if not any(self._is_wanted(card) for card in survey.cards):
            here = ", ".join(str(card.index) for card in survey.cards)
            raise UsageError(f"--device {self._device}: there is no such card here; the visible ones are {here}")

    def _is_wanted(self, card: LocalGpu) -> bool:
        return self._device is None or card.index == self._device

    def _card(self, card: LocalGpu, pids: frozenset[int]) -> CardSample:
        ours = [process for process in card.processes if process.pid in pids]
        named = [process.used_bytes for process in ours if process.used_bytes is not None]
        self._was_named |= bool(named)
        if self._tree is None:
            basis, watched = "card", card.used_bytes
        elif self._was_named:
            basis, watched = "processes", sum(named)
        elif self._grown_from_start:
            basis, watched = "growth", max(0, card.used_bytes - self._at_start.get(card.uuid, 0))
        else:
            basis, watched = "card", card.used_bytes
        return CardSample(
            index=card.index,
            name=card.name,
            total_bytes=card.total_bytes,
            used_bytes=card.used_bytes,
            free_bytes=card.free_bytes,
            watched_bytes=watched,
            basis=basis,
            busy_percent=card.busy_percent,
            temperature_celsius=card.temperature_celsius,
            processes=card.processes,
            processes_known=card.processes_known,
            watched_pids=tuple(process.pid for process in ours),
        )
