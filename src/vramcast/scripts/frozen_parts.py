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
    state_bytes = 0.0
    for optimizer in optimizers:
        share = _state_share(optimizer)
        for weight in (weight for group in optimizer.param_groups for weight in group["params"] if weight.is_cuda):
            every[id(weight)] = weight.nbytes
            # Networks that are trained in turn are frozen in between: they have gradients and state.
            if not weight.requires_grad and weight.grad is None and not optimizer.state.get(weight):
                state_bytes += share * weight.nbytes if id(weight) not in frozen else 0.0
                frozen[id(weight)] = weight.nbytes
    total, still = sum(every.values()), sum(frozen.values())
    if still <= total * _WORTH_MENTIONING:
        return ""
    return (
        f"{format_size(still)} of the {format_size(total)} of weights that the optimizer holds are frozen in these "
        f"steps: where the script trains them later, it takes at least {format_size(still + round(state_bytes))} more "
        "for their gradients and optimizer state, and activations besides (--whole runs on to it)"
    )


def _state_share(optimizer: torch.optim.Optimizer) -> float:
    """What the optimizer keeps of the weights that it trains, as a share of them."""
    trained = kept = 0
    for weight, state in optimizer.state.items():
        if isinstance(weight, torch.Tensor) and weight.is_cuda and state:
            trained += weight.nbytes
            kept += sum(one.nbytes for one in state.values() if isinstance(one, torch.Tensor) and one.is_cuda)
    return kept / trained if trained else 0.0
