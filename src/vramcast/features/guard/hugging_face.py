"""Hugging Face's Trainer: predicted by training a copy of its model for a few steps with the Trainer's own code.

    vramcast.guard(trainer)                                  # in front of trainer.train()
    Trainer(..., callbacks=[vramcast.guard.VramcastCallback()])

The first can change the trainer (`fallbacks`), the second comes when training has begun.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.card.device.context import VirtualGpu
from vramcast.features.guard.callback import MOST_ACCUMULATED, GuardedTraining, first_samples
from vramcast.features.guard.copies import Copies, bytes_on_card
from vramcast.features.guard.fallbacks import smaller_batches
from vramcast.features.guard.step import trace_program
from vramcast.gpus import GpuSpec
from vramcast.trace import StepTrace

_DURING_A_PREDICTION: dict[str, Any] = {
    "report_to": [],
    "logging_strategy": "no",
    "save_strategy": "no",
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "disable_tqdm": True,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": None,
    "dataloader_persistent_workers": False,
    "dataloader_pin_memory": False,
    "auto_find_batch_size": False,
    "use_cpu": False,
    "group_by_length": False,
}


class TrainerSubject:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.name = f"{type(trainer).__name__} of {type(trainer.model).__name__}"
        self.gpu: str | None = None

    def own_bytes(self) -> int | None:
        return bytes_on_card([self._trainer.model, self._optimizer()])

    def trace(self, gpu: GpuSpec, changes: Mapping[str, Any], available_bytes: int, steps: int) -> StepTrace:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise CannotPredict("several processes train together: guard a job that says `gpus` instead")
        batch = changes.get("per_device_train_batch_size", self._trainer.args.per_device_train_batch_size)
        samples = first_samples(self._trainer.train_dataset, batch)
        copies = Copies([self._trainer.model, self._optimizer()])

        def program(card: VirtualGpu) -> None:
            # Nothing is saved, so this folder is never made.
            folder = os.path.join(tempfile.gettempdir(), f"vramcast-{os.getpid()}")
            model, optimizer = copies.make()
            self._shadow(model, optimizer, {**changes, "max_steps": steps, "output_dir": folder}, samples).train()

        return trace_program(program, gpu, available_bytes, name=self.name, fresh=True)

    def named(self, fallback: str) -> Iterator[Mapping[str, Any]]:
        args = self._trainer.args
        if fallback == "micro-batch":
            yield from smaller_batches(
                "per_device_train_batch_size", args.per_device_train_batch_size,
                "gradient_accumulation_steps", args.gradient_accumulation_steps,
            )  # fmt: skip
        elif fallback == "checkpointing":
            yield {"gradient_checkpointing": True}
        else:
            raise UsageError(
                f"fallbacks: {fallback!r}: for a Trainer there are micro-batch and checkpointing, or name changes of "
                "its arguments, e.g. {'optim': 'adamw_bnb_8bit'}"
            )

    def apply(self, changes: Mapping[str, Any]) -> TrainingArguments:
        args = self._trainer.args
        _change(args, changes)
        if "per_device_train_batch_size" in changes:
            self._trainer._train_batch_size = args.train_batch_size
        return args

    def _optimizer(self) -> Any:
        """torch's own: accelerate's wrapper is made anew."""
        return getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)

    def _shadow(self, model: Any, optimizer: Any, changes: Mapping[str, Any], samples: list[Any]) -> Trainer:
        """The trainer once more, as it is but for its model, on the virtual card."""
        shadow = copy.copy(self._trainer)
        args = copy.copy(self._trainer.args)
        for name in ("_setup_devices", "_n_gpu", "distributed_state"):  # found out anew on the virtual card
            vars(args).pop(name, None)
        accumulation = changes.get("gradient_accumulation_steps", args.gradient_accumulation_steps)
        passes = min(accumulation, MOST_ACCUMULATED)
        _change(args, {**_DURING_A_PREDICTION, **changes, "gradient_accumulation_steps": passes})
        needed = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.max_steps
        shadow.args = args
        shadow.train_dataset = list(itertools.islice(itertools.cycle(samples), needed))
        shadow.eval_dataset = None
        shadow.model = shadow.model_wrapped = model
        shadow.model_init = None  # type: ignore[assignment]
        shadow.optimizer, shadow.lr_scheduler = optimizer, None
        shadow._train_batch_size = args.train_batch_size
        shadow.create_accelerator_and_postprocess()
        shadow.state, shadow.control = TrainerState(), TrainerControl()
        shadow.callback_handler = CallbackHandler(
            [callback for callback in self._trainer.callback_handler.callbacks if _needed(callback)],
            model, shadow.processing_class, optimizer, None,
        )  # fmt: skip
        shadow.is_in_train = False
        return shadow


def _needed(callback: TrainerCallback) -> bool:
    """Keep only callbacks that decide when the loop ends; others would report, or be our own."""
    return type(callback).__name__ == "DefaultFlowCallback"


def _change(args: TrainingArguments, changes: Mapping[str, Any]) -> None:
    known = {name for name in changes if hasattr(args, name)}
    wrong = next((name for name in changes if name not in known and name not in _DURING_A_PREDICTION), None)
    if wrong is not None:
        raise UsageError(f"fallbacks: TrainingArguments has no {wrong!r}")
    for name in known:
        object.__setattr__(args, name, changes[name])


class VramcastCallback(GuardedTraining, TrainerCallback):
    """Predicts when training begins, then watches. The arguments are those of `vramcast.guard`."""

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = _calling_trainer()
        self.begin(None if trainer is None else TrainerSubject(trainer), args.device.type)
        if trainer is not None and self.guard is not None:
            self.guard.log_to(trainer)

    def on_train_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = _calling_trainer()
        if trainer is not None and self.guard is not None:
            self.guard.log_to(trainer)
        self.end()


def _calling_trainer() -> Trainer | None:
    """Callbacks are not told whose they are, so the Trainer is looked for among those who called."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None
