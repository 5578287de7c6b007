"""The largest batches that a training loader gives, found by going through its epoch on the CPU.

They are then given to the training loop in rising order, in which every batch needs blocks a little larger than those
that were freed. The largest comes once more after the smallest.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import dataloader

from vramcast.base.errors import CannotPredict
from vramcast.card.dispatch.storages import is_virtual_gpu
from vramcast.scripts.training_loader import Pass, RandomState

MOST_BATCHES = 100_000
"""How many batches of an endless loader are looked at."""
_PER_DOUBLING = 4
"""Sizes of which one batch each is run, between a size and its double."""
_ONCE_MORE = 2
"""How many times the largest is given again at the end: loaders fetch ahead, and a step must still be made."""
_DEPTH = 4
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    """Its place among the batches that the loader gives in an epoch, from 1."""
    size: int
    words: str
    content: Any


class LongestBatches:
    """The batches of a pass that are worth running, and their order."""

    def __init__(self, training: Pass, progress: Callable[[str], None]) -> None:
        self._largest: dict[Any, Batch] = {}
        self._amounts: dict[Any, int] = {}
        """By the same keys: what made it the largest."""
        self._first_of_size: dict[int, int] = {}
        self.seen = 0
        for number, content in enumerate(_batches(training), 1):
            self.seen = number
            self._look_at(number, content)
            if number % 100 == 0:
                progress(f"batch {number} of the loader")
            if number == MOST_BATCHES:
                break
        if not self._largest:
            raise CannotPredict("--longest: the loader of the training loop gave no batch when it was gone through")
        rising = sorted({batch.number: batch for batch in self._largest.values()}.values(), key=lambda b: b.size)
        self.longest = rising[-1]
        self._order = [*rising, rising[0], self.longest] if len(rising) > 1 else rising
        self._given: list[Batch] = []
        self.smallest = rising[0]

    def _look_at(self, number: int, content: Any) -> None:
        leaves = list(_leaves(content, "", _DEPTH))
        size = sum(nbytes for _, nbytes, _ in leaves)
        self._first_of_size.setdefault(size, number)
        batch = None
        sizes = [("", round(_PER_DOUBLING * math.log2(size)) if size else -1, size)]
        sizes += [(name, -1, nbytes) for name, nbytes, _ in leaves if name]  # long in one way and short in another
        for name, place, amount in sizes:
            key = (name, place)
            known = self._largest.get(key)
            if known is None or amount > self._amounts[key]:
                batch = batch or Batch(number, size, _in_words(leaves), content)
                self._largest[key] = batch
                self._amounts[key] = amount

    def give(self) -> Any:
        """The next batch for the training loop."""
        place = len(self._given)
        batch = self._order[place] if place < len(self._order) else self.longest
        self._given.append(batch)
        try:
            return copy.deepcopy(batch.content)  # loops take parts out of a batch, or write into it
        except (TypeError, RuntimeError, NotImplementedError):
            return batch.content

    @property
    def planned(self) -> int:
        return len(self._order) + _ONCE_MORE

    @property
    def only_the_longest_is_left(self) -> bool:
        return self.given >= len(self._order)

    @property
    def given(self) -> int:
        return len(self._given)

    @property
    def summary(self) -> str:
        several = f"the largest of {self.seen:,} batches is number {self.longest.number:,} ({self.longest.words})"
        if self.smallest.size == self.longest.size:
            return f"all {self.seen:,} batches of the loader are of one size: {self.longest.words}"
        return (
            f"{several}, the smallest number {self.smallest.number:,} ({self.smallest.words}). After the script's own "
            f"first steps {len(self._order) - 2} of them were run from the smallest to the largest, then the smallest "
            "and the largest again"
        )

    @property
    def at_work(self) -> str:
        """What the training loop was given last, for when memory runs out."""
        if not self._given:
            return ""
        batch = self._given[-1]
        first = min(number for size, number in self._first_of_size.items() if size >= batch.size)
        return (
            f"it runs out with batch {batch.number:,} of {self.seen:,} ({batch.words}); in the loader's own order the "
            f"first batch of that size or more is number {first:,}"
        )


def _batches(training: Pass) -> Iterator[Any]:
    """All batches of the epoch that the pass began, in this process."""
    loader, began = training.loader, training.random_state
    if loader is None or began is None:
        raise CannotPredict("--longest: the loader of the training loop cannot be gone through")
    now = RandomState(loader)
    before = {name: getattr(loader, name) for name in ("num_workers", "pin_memory", "timeout", "prefetch_factor")}
    vars(loader).update(num_workers=0, pin_memory=False, timeout=0, prefetch_factor=None)
    try:
        began.restore()
        yield from dataloader._SingleProcessDataLoaderIter(loader)
    finally:
        vars(loader).update(before)
        now.restore()


def _leaves(value: Any, name: str, depth: int) -> Iterator[tuple[str, int, str]]:
    """(name, size, words) of each tensor, array and text in a batch."""
    if isinstance(value, torch.Tensor):
        if is_virtual_gpu(value):
            raise CannotPredict(
                "--longest: the loader gives tensors that are on the card already; to look at all of them would take "
                "memory there. --epoch runs them one after the other"
            )
        dtype = str(value.dtype).removeprefix("torch.")
        yield name, value.numel() * value.element_size(), f"{dtype}{list(value.shape)}"
    elif isinstance(value, (str, bytes)):
        yield name, len(value), f"{len(value)} characters"
    elif hasattr(value, "nbytes") and hasattr(value, "shape"):
        yield name, int(value.nbytes), f"{value.dtype}{list(value.shape)}"
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key), depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item, name, depth - 1)
    elif depth and hasattr(value, "__dict__") and not callable(value):
        for key, item in vars(value).items():
            yield from _leaves(item, f"{name}.{key}" if name else key, depth - 1)


def _in_words(leaves: list[tuple[str, int, str]]) -> str:
    largest = sorted(leaves, key=lambda leaf: -leaf[1])[:_NAMES_SHOWN]
    more = f" and {len(leaves) - len(largest)} more" if len(leaves) > len(largest) else ""
    return ", ".join(f"{name} {words}".strip() for name, _, words in largest) + more
