"""An averaged copy of the weights (EMA)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vramcast.jobs.schema import Ema


class Average:
    """The copy of one component; `update` after every optimizer step."""

    def __init__(self, wish: Ema, module: nn.Module) -> None:
        self._decay, self._at_once = wish.decay, wish.update == "differences"
        self._module = module
        device: Any = "cpu" if wish.device == "cpu" else None
        self._averaged: AveragedModel | None = None
        self._copy: nn.Module | None = None
        if wish.update == "foreach":
            self._averaged = AveragedModel(module, device=device, multi_avg_fn=get_ema_multi_avg_fn(wish.decay))
        else:
            self._copy = copy.deepcopy(module).requires_grad_(False)
            if device is not None:
                self._copy = self._copy.to(device)

    @property
    def module(self) -> nn.Module:
        """The copy itself."""
        copied = self._averaged.module if self._averaged is not None else self._copy
        assert copied is not None
        return copied

    def update(self) -> None:
        if self._averaged is not None:
            self._averaged.update_parameters(self._module)
            return
        assert self._copy is not None
        with torch.no_grad():
            if self._at_once:
                averaged: list[torch.Tensor] = list(self._copy.parameters())
                differences = torch._foreach_sub(averaged, tuple(self._module.parameters()))
                torch._foreach_sub_(averaged, differences, alpha=1 - self._decay)
                del differences
                return
            for kept, new in zip(self._copy.parameters(), self._module.parameters(), strict=True):
                kept.mul_(self._decay).add_(new.detach().to(kept.device), alpha=1 - self._decay)
