"""The loop that every workload runs, and what is written down after each of its steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 6
Step = Callable[[int], torch.Tensor]
WORKLOADS: dict[str, Callable[[], None]] = {}


def workload(make: Callable[[], None]) -> Callable[[], None]:
    WORKLOADS[make.__name__.replace("_", "-")] = make
    return make


class Record:
    """What the allocator says after each step, and the step itself for whoever wants to time it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self.after_step: Callable[[], None] = lambda: None
        self.after_training: Callable[[Callable[[int], None]], None] = lambda step: None

    def step(self) -> None:
        torch.cuda.synchronize()
        self.steps.append({
            "allocated": torch.cuda.memory_allocated(),
            "peak_allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.memory_reserved(),
            "peak_reserved": torch.cuda.max_memory_reserved(),
        })  # fmt: skip
        self.after_step()


RECORD = Record()


def run(step: Callable[[int], None], steps: int = STEPS) -> None:
    for number in range(steps):
        step(number)
        RECORD.step()
    RECORD.after_training(step)


def train(
    model: nn.Module, loss_of: Step, *, amp: torch.dtype | None = None, optimizer: Any = None, clip: bool = False,
    accumulate: int = 1, scaler: bool = False, compiled_step: bool = False, steps: int = STEPS,
) -> None:  # fmt: skip
    """The loop that nearly everybody writes."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scale = torch.amp.GradScaler("cuda", enabled=scaler)
    update = torch.compile(optimizer.step) if compiled_step else optimizer.step

    def one_step(step: int) -> None:
        for _ in range(accumulate):
            with torch.autocast("cuda", dtype=amp or torch.bfloat16, enabled=amp is not None):
                loss = loss_of(step)
            scale.scale(loss / accumulate).backward()
        if scaler:
            scale.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler:
            scale.step(optimizer)
            scale.update()
        else:
            update()
        optimizer.zero_grad(set_to_none=True)

    run(one_step, steps)


@functools.cache
def _host_ids(batch: int, length: int, vocab: int) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length))


@functools.cache
def _host_images(batch: int, size: int, channels: int) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)


def ids(batch: int, length: int, vocab: int = 50257) -> torch.Tensor:
    """The same numbers each time, so that the host's random numbers are no part of a step's time."""
    return _host_ids(batch, length, vocab).cuda()


def images(batch: int, size: int = 224, channels: int = 3) -> torch.Tensor:
    return _host_images(batch, size, channels).cuda()


def gpt_loss(model: Any, batch: int, length: int, vocab: int = 50257) -> Step:
    return lambda step: model(ids(batch, length, vocab), ids(batch, length, vocab))


def labelled(model: Any, batch: int, length: int, vocab: int) -> Step:
    def loss_of(step: int) -> torch.Tensor:
        inputs = ids(batch, length, vocab)
        return model(input_ids=inputs, labels=inputs).loss  # type: ignore[no-any-return]

    return loss_of


def classified(model: Any, batch: int, *, channels_last: bool = False, size: int = 224) -> Step:
    def loss_of(step: int) -> torch.Tensor:
        inputs = images(batch, size)
        if channels_last:
            inputs = inputs.to(memory_format=torch.channels_last)
        return F.cross_entropy(model(inputs), torch.randint(0, 1000, (batch,)).cuda())

    return loss_of
