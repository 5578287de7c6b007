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

from vramcast.virtual_gpu.patches import Patches

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


class TrainingLoader:
    """`choose`: given the batch count of the training pass so far, a batch to give instead of the next; None for the
    loader's own."""

    def __init__(self, on_batch: Callable[[], None], *, remember_random_state: bool = False) -> None:
        self._on_batch = on_batch
        self._remembers = remember_random_state
        self._passes = 0
        self._last: Pass | None = None
        self.training: Pass | None = None
        """The first run through the loader of the training loop."""
        self.choose: Callable[[], Any] | None = None
        self._ended_at = 0
        """Passes begun when the training loader first came to its end."""
        self._next_epoch = False
        self._steps_after = 0

    def step_made(self) -> None:
        if self.training is None:
            self.training = self._last
        elif self._ended_at and self._last is not None and self._last.number > self._ended_at:
            self._steps_after += 1

    @property
    def epoch_has_ended(self) -> bool:
        """Its batches are used up, and training goes on with others: what follows the epoch was run."""
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
                if made_by is self.training and not self._ended_at:
                    self._ended_at = self._passes
                raise
            made_by.batches += 1
            self._last = made_by
            if self._ended_at and self.training is not None and made_by.number > self._ended_at:
                self._next_epoch = self._next_epoch or made_by.dataset == self.training.dataset
            return batch

        patches = Patches()
        patches.set(base, "__init__", __init__)
        patches.set(base, "_reset", _reset)
        patches.set(base, "__next__", __next__)
        try:
            yield
        finally:
            patches.undo()

    def _begin(self, loader: Any) -> Pass:
        self._passes += 1
        return Pass(loader, self._passes, RandomState(loader) if self._remembers else None)


class RandomState:
    """Of all generators that decide which batches a loader gives."""

    def __init__(self, loader: Any) -> None:
        owners = (loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None))
        generators = [getattr(owner, "generator", None) for owner in owners]
        self._generators = [g for g in (torch.default_generator, *generators) if isinstance(g, torch._C.Generator)]
        self._states = [generator.get_state() for generator in self._generators]
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
