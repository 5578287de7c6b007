"""Weights that an optimizer holds and that are frozen for now: scripts unfreeze them after their first epochs."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from vramcast.base.units import format_size

_WORTH_MENTIONING = 0.01


def summary(optimizers: Iterable[torch.optim.Optimizer]) -> str:
    """A note about them; empty where there are none worth mentioning."""
    every: dict[int, int] = {}
    frozen: dict[int, int] = {}
    for optimizer in optimizers:
        for weight in (weight for group in optimizer.param_groups for weight in group["params"] if weight.is_cuda):
            every[id(weight)] = weight.nbytes
            # Networks that are trained in turn are frozen in between: they have gradients and state.
            if not weight.requires_grad and weight.grad is None and not optimizer.state.get(weight):
                frozen[id(weight)] = weight.nbytes
    total, still = sum(every.values()), sum(frozen.values())
    if still <= total * _WORTH_MENTIONING:
        return ""
    return (
        f"{format_size(still)} of the {format_size(total)} of weights that the optimizer holds are frozen in these "
        "steps: where the script trains them later, it takes more memory for their gradients, optimizer state and "
        "activations (--whole runs on to it)"
    )
