"""torch.profiler on a card that computes nothing: the host's side is profiled, and kernels take no time.

Where Kineto cannot trace a card, PyTorch records CUDA events around every op instead. There is no driver to make them:
each op would print an error with the stack of PyTorch's own functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from vramcast.card.device.patches import Patches


def install(put: Patches) -> None:
    profile: Any = torch.autograd.profiler.profile
    put.set(profile, "__init__", _without_events(profile.__init__))


def _without_events(original: Callable[..., None]) -> Callable[..., None]:
    states: Any = torch.autograd.ProfilerState  # type: ignore[attr-defined]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if getattr(self, "profiler_kind", None) == states.KINETO_GPU_FALLBACK:
            self.profiler_kind = states.KINETO

    return init
