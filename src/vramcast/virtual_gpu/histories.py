"""Optimizers whose state grows for many steps up to a bound: LBFGS, which keeps the last `history_size` updates.

Whether an update is kept depends on gradients, which are not known here, and a hundred steps take long. So the history
is filled at once, as it is in a run of some length.
"""

from __future__ import annotations

from typing import Any

import torch


def fill_history(optimizer: Any) -> int:
    """Make what is missing in an LBFGS optimizer's history, and say how many updates that was."""
    if not isinstance(optimizer, torch.optim.LBFGS) or not optimizer.state:
        return 0
    state = next(iter(optimizer.state.values()))
    histories = [state.get(name) for name in ("old_dirs", "old_stps", "ro")]
    if any(history is None for history in histories):  # they are made in the first step
        return 0
    parameters = optimizer.param_groups[0]["params"]
    missing = max(0, optimizer.param_groups[0]["history_size"] - len(histories[0]))
    count = sum(parameter.numel() for parameter in parameters)
    like = {"dtype": parameters[0].dtype, "device": parameters[0].device}
    for _ in range(missing):
        histories[0].append(torch.zeros(count, **like))
        histories[1].append(torch.zeros(count, **like))
        histories[2].append(torch.ones((), **like))
    return int(missing)
