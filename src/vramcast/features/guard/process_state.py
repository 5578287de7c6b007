"""What a prediction inside the training process could change for it, put back when it ends."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vramcast.card.device.hidden_output import libraries_quiet
from vramcast.features.guard.accelerate import shared_states

_OF_A_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")


@contextmanager
def kept(*, fresh: bool) -> Iterator[None]:
    """Random numbers, torch's switches, the environment and accelerate's shared state as they were.

    `fresh`: what runs inside sets up its own process state, as a script of its own would, on one card.
    """
    with ExitStack() as after:
        after.enter_context(random_numbers_kept())
        for restore in (_switches(), _environment(), _accelerate(fresh=fresh)):
            after.callback(restore)
        if fresh:
            for name in _OF_A_LAUNCHER:
                os.environ.pop(name, None)
        after.enter_context(libraries_quiet())
        yield


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Restore the host's random state. The real card's generators are not drawn from: the virtual card replaces
    them."""
    numpy = sys.modules.get("numpy")
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def _switches() -> Any:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    had_group = torch.distributed.is_available() and torch.distributed.is_initialized()

    def restore() -> None:
        if not had_group and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)

    return restore


def _environment() -> Any:
    before = dict(os.environ)

    def restore() -> None:
        os.environ.clear()
        os.environ.update(before)

    return restore


def _accelerate(*, fresh: bool) -> Any:
    """accelerate keeps the device and the step of accumulation in dictionaries that all its objects share."""
    shared: list[Any] = [state._shared_state for state in shared_states()]  # type: ignore[attr-defined]
    before = [dict(state) for state in shared]
    if fresh:
        for state in shared:
            state.clear()

    def restore() -> None:
        for state, values in zip(shared, before, strict=True):
            state.clear()
            state.update(values)

    return restore
