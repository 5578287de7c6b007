"""Lightning: predicted by fitting a copy of the module for a few steps with a Trainer of Lightning's own.

    Trainer(..., callbacks=[vramcast.guard.LightningVramcastCallback()])

`lightning` and `pytorch_lightning` are two packages with the same classes; the one that is imported is taken.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.card.device.context import VirtualGpu
from vramcast.features.guard.callback import MOST_ACCUMULATED, GuardedTraining, first_samples
from vramcast.features.guard.copies import Copies, bytes_on_card
from vramcast.features.guard.process_state import random_numbers_kept
from vramcast.features.guard.step import trace_program
from vramcast.gpus import GpuSpec
from vramcast.trace import StepTrace

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _lightning() -> Any:
    loaded = next((name for name in _PACKAGES if name in sys.modules), None)
    for name in (loaded,) if loaded else _PACKAGES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError("Lightning is not installed: pip install lightning")


class LightningSubject:
    """A trainer that has begun to fit a module, so that its data loader is there."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer = trainer
        self._module = module
        self.name = f"Lightning's Trainer of {type(module).__name__}"
        self.gpu: str | None = None

    def own_bytes(self) -> int | None:
        return bytes_on_card([self._module, *self._trainer.optimizers])

    def trace(self, gpu: GpuSpec, changes: Mapping[str, Any], available_bytes: int, steps: int) -> StepTrace:
        if self._trainer.world_size > 1:
            raise CannotPredict("several processes train together: guard a job that says `gpus` instead")
        samples = _first_batch(self._trainer.train_dataloader)
        copies = Copies([self._module], on_host=True)

        def program(card: VirtualGpu) -> None:
            self._shadow(steps).fit(self._copy(copies), _Repeated(samples, steps * MOST_ACCUMULATED))

        return trace_program(program, gpu, available_bytes, name=self.name, fresh=True)

    def named(self, fallback: str) -> Iterator[Mapping[str, Any]]:
        raise UsageError("fallbacks: a Lightning trainer that has begun cannot be changed any more")

    def apply(self, changes: Mapping[str, Any]) -> None:
        return None

    def _copy(self, copies: Copies) -> Any:
        """The module knows its trainer, and must not take that along."""
        trainer, self._module._trainer = self._module._trainer, None
        try:
            return copies.make()[0]
        finally:
            self._module._trainer = trainer

    def _shadow(self, steps: int) -> Any:
        real = self._trainer
        return _lightning().Trainer(
            accelerator="gpu",
            devices=1,
            max_steps=steps,
            precision=real.precision,
            accumulate_grad_batches=min(real.accumulate_grad_batches, MOST_ACCUMULATED),
            gradient_clip_val=real.gradient_clip_val,
            gradient_clip_algorithm=real.gradient_clip_algorithm,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            barebones=False,
        )


class _Repeated(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """One batch again and again, as a loader that needs no workers gives it."""

    def __init__(self, batch: Any, times: int) -> None:
        self._batch = batch
        self._times = times

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._times):
            yield self._batch

    def __len__(self) -> int:
        return self._times


def _first_batch(loader: Any) -> Any:
    """A batch of the first samples, read in this process; a streamed dataset cannot be read twice."""
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is None:
        raise CannotPredict("its data loader makes no batches of samples: guard a training step with a batch instead")
    samples = first_samples(loader.dataset, sampler.batch_size)
    with random_numbers_kept():
        return loader.collate_fn(samples)


def _callback_class() -> type:
    lightning = _lightning()

    class LightningVramcastCallback(GuardedTraining, lightning.Callback):  # type: ignore[misc, name-defined]
        """Predicts when training begins, then watches. The arguments are those of `vramcast.guard`."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.begin(LightningSubject(trainer, pl_module), pl_module.device.type)
            self._log(trainer)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._log(trainer)
            self.end()

        def _log(self, trainer: Any) -> None:
            if self.guard is not None:
                for logger in trainer.loggers:
                    self.guard.log_to(logger, trainer.global_step)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self.end()

    return LightningVramcastCallback


LightningVramcastCallback = _callback_class()
