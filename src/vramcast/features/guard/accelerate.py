"""accelerate: a step that uses an Accelerator is predicted with the real one, lent out and put back.

An Accelerator cannot be copied (its copy is itself), and a step changes it: its loss scaler, how far accumulation is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def shared_states() -> list[type]:
    """Classes whose objects all stand for one state of the process, and are no others when they are copied."""
    module = sys.modules.get("accelerate.state")
    names = ("PartialState", "AcceleratorState", "GradientState")
    return [] if module is None else [getattr(module, name) for name in names]


def accelerators_in(values: list[Any]) -> list[Any]:
    module = sys.modules.get("accelerate.accelerator")
    return [] if module is None else [value for value in values if isinstance(value, module.Accelerator)]


@contextmanager
def lent(accelerators: list[Any]) -> Iterator[Callable[[list[Any]], None]]:
    """Gives a function that tells copies of optimizers which scaler to use. Shared state is kept by `kept`."""
    before = [dict(vars(accelerator)) for accelerator in accelerators]
    for accelerator in accelerators:
        for state in shared_states():
            if "device" in state._shared_state:  # type: ignore[attr-defined]
                state._shared_state["device"] = torch.device("cuda", 0)  # type: ignore[attr-defined]
        if accelerator.scaler is not None:
            accelerator.scaler = type(accelerator.scaler)(**_settings(accelerator.scaler))

    def tell(copies: list[Any]) -> None:
        scaler = next((accelerator.scaler for accelerator in accelerators if accelerator.scaler is not None), None)
        for copy in copies:
            if getattr(copy, "scaler", None) is not None:
                copy.scaler = scaler

    try:
        yield tell
    finally:
        for accelerator, values in zip(accelerators, before, strict=True):
            vars(accelerator).clear()
            vars(accelerator).update(values)


def _settings(scaler: Any) -> dict[str, Any]:
    """Settings of torch's GradScaler, before it puts anything on a card."""
    return {
        "init_scale": scaler._init_scale,
        "growth_factor": scaler._growth_factor,
        "backoff_factor": scaler._backoff_factor,
        "growth_interval": scaler._growth_interval,
        "enabled": scaler._enabled,
    }
