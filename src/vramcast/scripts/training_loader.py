"""The DataLoader that feeds the training loop: when its epoch has ended, and which batches it gives.

Every iterator of a DataLoader is followed, also below the loaders of accelerate, Lightning and the like. The one whose
batch came last before the first optimizer step is the training loop's; evaluation has others.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import dataloader

from vramcast.card.device.patches import Patches

_PREFETCHED = 3
"""Steps after the end of an epoch that may still be its own: loaders fetch a batch or two ahead."""


class Pass:
    """One run through a loader."""

    def __init__(self, loader: Any, number: int, random_state: RandomState | None) -> None:
        self.loader = loader if random_state is not None else None
        """Kept only where the batches are to be looked at again: it may hold memory."""
        self.dataset = id(loader.dataset)
        self.number = number
        self.random_state = random_state
        self.batches = 0
        self.length = _length(loader)
        self.ended = False


class TrainingLoader:
    """`on_batch`: called before each batch of any loader."""

    def __init__(self, on_batch: Callable[[], None], *, remember_random_state: bool = False) -> None:
        self._on_batch = on_batch
        self._remembers = remember_random_state
        self._passes = 0
        self._last: Pass | None = None
        self.training: Pass | None = None
        """The first run through the loader of the training loop."""
        self.choose: Callable[[], Any] | None = None
        """What to give the training loop instead of the loader's own batches."""
        self.has_evaluated = False
        """Whether another loader has given batches since training began."""
        self._passes_at_end = 0
        """How many passes had begun when the training loader first came to its end."""
        self._next_epoch = False
        self._steps_after = 0

    def step_made(self) -> None:
        if self.training is None:
            self.training = self._last
            if self.training is not None and self.training.ended:
                self._passes_at_end = self._passes
        elif self._is_after_epoch(self._last):
            self._steps_after += 1

    def _is_after_epoch(self, current: Pass | None) -> bool:
        return current is not None and 0 < self._passes_at_end < current.number

    @property
    def epoch_has_ended(self) -> bool:
        """Whether its batches are used up and training goes on with others, so that what follows the epoch was run."""
        return self._next_epoch or self._steps_after >= _PREFETCHED

    @contextmanager
    def followed(self) -> Iterator[None]:
        base: Any = dataloader._BaseDataLoaderIter
        start, reset, following = base.__init__, base._reset, base.__next__

        def __init__(batches: Any, loader: Any) -> None:
            batches._vramcast_pass = self._begin(loader)
            start(batches, loader)

        def _reset(batches: Any, loader: Any, first_iter: bool = False) -> None:
            if not first_iter:
                batches._vramcast_pass = self._begin(loader)
            reset(batches, loader, first_iter)

        def __next__(batches: Any) -> Any:
            self._on_batch()
            made_by = getattr(batches, "_vramcast_pass", None)
            if made_by is None:  # begun before we were here
                return following(batches)
            if self.choose is not None and self.training is not None and made_by.dataset == self.training.dataset:
                return self.choose()
            try:
                batch = following(batches)
            except StopIteration:
                self._end(made_by)
                raise
            self._note_batch(made_by)
            return batch

        patches = Patches()
        patches.set(base, "__init__", __init__)
        patches.set(base, "_reset", _reset)
        patches.set(base, "__next__", __next__)
        try:
            yield
        finally:
            patches.undo()

    def _note_batch(self, made_by: Pass) -> None:
        made_by.batches += 1
        self._last = made_by
        if made_by.batches == made_by.length:  # Lightning counts, and does not ask for more
            self._end(made_by)
        if self.training is not None and made_by.dataset != self.training.dataset:
            self.has_evaluated = True
        elif self._is_after_epoch(made_by):
            self._next_epoch = True

    def _end(self, current: Pass) -> None:
        current.ended = True
        if current is self.training and not self._passes_at_end:
            self._passes_at_end = self._passes

    def _begin(self, loader: Any) -> Pass:
        self._passes += 1
        return Pass(loader, self._passes, RandomState(loader) if self._remembers else None)


def _length(loader: Any) -> int | None:
    """How many batches it gives, where that is known without asking the data set."""
    if loader._dataset_kind != dataloader._DatasetKind.Map:
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


class RandomState:
    """State of all generators that decide which batches a loader gives."""

    def __init__(self, loader: Any) -> None:
        owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
        generators = [getattr(owner, "generator", None) for owner in owners]
        self._generators = [g for g in (torch.default_generator, *generators) if isinstance(g, torch._C.Generator)]
        self._states = [_state_of(generator) for generator in self._generators]
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _state_of(generator: torch._C.Generator) -> torch.Tensor:
    """Of the host's own by the function that first draws what weights without data owe it."""
    return torch.get_rng_state() if generator is torch.default_generator else generator.get_state()
