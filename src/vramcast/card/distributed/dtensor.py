"""DTensor: its Python code runs inside an op, where calls must see the card too (random states, checks of devices)."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.device.installed_torch import INSTALLED

if TYPE_CHECKING:
    from vramcast.card.device.machine import Machine
    from vramcast.card.device.patches import Patches

_DISPATCH = ("_dispatch_get_local_results_slow_path", "dispatch")
"""Methods of OpDispatcher: C++ calls the first in torch 2.10 and later, and the second before."""


def install(put: Patches, machine: Machine) -> None:
    if INSTALLED < (2, 5):
        return
    # Made at the first random op and kept for the process, with a state that is on the card.
    put.set(importlib.import_module("torch.distributed.tensor._random"), "_rng_tracker", None)
    _forget_plans()
    dispatcher: Any = importlib.import_module("torch.distributed.tensor._dispatch").OpDispatcher
    for name in _DISPATCH:
        if name in vars(dispatcher):
            put.set(dispatcher, name, _seeing_the_card(vars(dispatcher)[name]))
            put.set(sys.modules[__name__], "_machine", machine)
            return


def _forget_plans() -> None:
    """How ops are sharded is kept for the process, with meshes whose groups are gone once another card is there.

    As _clear_sharding_prop_cache of torch.distributed.tensor.debug does it: that module needs NumPy, which torch itself
    does without.
    """
    dtensor: Any = importlib.import_module("torch.distributed.tensor._api").DTensor
    plans = dtensor._op_dispatcher.sharding_propagator.propagate_op_sharding
    for where, name in ((plans, "cache_clear"), (torch._C, "_clear_DTensor_sharding_propagator_cache")):
        forget = getattr(where, name, None)
        if forget is not None:
            forget()


_machine: Machine | None = None
"""The active card's machine. It is read at each call, since torch may keep our function for good."""


def _seeing_the_card(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if _machine is None:
            return original(*args, **kwargs)
        with _machine.with_functions():
            return original(*args, **kwargs)

    return run
