"""The sum of two gradients that the autograd engine makes where branches meet."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.virtual_gpu import accumulation
from vramcast.virtual_gpu.kernels.registry import Call, kernel


@kernel("aten::add.Tensor")
def add(call: Call) -> Any:
    old, new = call.args[0], call.args[1]
    if (
        call.mode.machine.engine_is_running()
        and isinstance(new, torch.Tensor)
        and old.shape == new.shape
        and old.dtype == new.dtype
        and old.is_meta
        and new.is_meta
        and not torch.is_grad_enabled()
    ):
        kept = accumulation.reusable(old, new)
        if kept is not None:
            return kept.detach()
    return call.run()
