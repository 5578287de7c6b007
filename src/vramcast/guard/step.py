"""A training step of the user's own, run on the virtual card in this process with everything put back afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from vramcast.errors import CannotPredict, UsageError, VramcastError
from vramcast.gpus import GpuSpec
from vramcast.guard.accelerate import accelerators_in, lent
from vramcast.guard.copies import Copies, bytes_on_card, is_live
from vramcast.guard.fallbacks import batch_keys, smaller_batches
from vramcast.guard.process_state import kept
from vramcast.memory.replay import highest_without_workspaces, replay
from vramcast.trace import StepTrace
from vramcast.virtual_gpu.context import VirtualGpu, virtual_gpu

NO_LIMIT = 2**60


class StepSubject:
    def __init__(self, function: Callable[..., Any], objects: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        self._function = function
        self._objects = list(objects)
        self._arguments = dict(arguments)
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.gpu: str | None = None
        self._accelerators = accelerators_in([*_reached(function).values(), *self._objects, *self._arguments.values()])
        _refuse_live_closures(function)

    def own_bytes(self) -> int | None:
        return bytes_on_card([self._objects, self._arguments])

    def trace(self, gpu: GpuSpec, changes: Mapping[str, Any], available_bytes: int, steps: int) -> StepTrace:
        copies = Copies([self._objects, self.apply(changes)])

        def program(card: VirtualGpu) -> None:
            with lent(self._accelerators) as tell:
                objects, arguments = copies.make()
                tell(objects)
                if self._objects:
                    for _ in range(steps):
                        self._function(*objects, **arguments)
                    return
                step = self._function(**arguments)
                if callable(step):
                    for _ in range(steps):
                        step()

        fresh = not self._objects and not self._accelerators
        return trace_program(program, gpu, available_bytes, name=self.name, fresh=fresh)

    def named(self, fallback: str) -> Iterator[Mapping[str, Any]]:
        if fallback == "micro-batch":
            batch, accumulation = batch_keys(self._arguments)
            yield from smaller_batches(batch, self._arguments[batch], accumulation, self._arguments[accumulation])
        elif isinstance(self._arguments.get(fallback), bool):
            yield {fallback: not self._arguments[fallback]}
        else:
            raise UsageError(
                f"fallbacks: {fallback!r}: {self.name} has no argument of that name that is true or false; name the "
                "changes of its arguments instead, e.g. {'checkpointing': True}"
            )

    def apply(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._arguments, **changes}


def trace_program(
    program: Callable[[VirtualGpu], None], gpu: GpuSpec, available_bytes: int, *, name: str, fresh: bool
) -> StepTrace:
    """`program` on a virtual card without a limit; again under the limit where smaller workspaces might make it fit."""
    card, _ = _run(program, gpu, NO_LIMIT, name, fresh)
    trace = card.trace()
    capacity = available_bytes - trace.context_bytes
    if capacity > 0 and highest_without_workspaces(trace) <= capacity and not replay(trace, None, capacity).completed:
        limited, refused = _run(program, gpu, capacity, name, fresh)
        if not refused:
            return limited.trace()
    return trace


def _run(
    program: Callable[[VirtualGpu], None], gpu: GpuSpec, limit_bytes: int, name: str, fresh: bool
) -> tuple[VirtualGpu, bool]:
    card = virtual_gpu(gpu, limit_bytes=limit_bytes, source=name)
    refused = False
    with kept(fresh=fresh), card:
        try:
            program(card)
        except torch.OutOfMemoryError as error:
            refused = True
            error.__traceback__ = None  # it holds what the failed step had made
        except (VramcastError, KeyboardInterrupt):
            raise
        except Exception as error:
            lines = str(error).strip().splitlines()
            said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
            raise CannotPredict(f"{name} failed on the virtual card: {said}") from error
    if refused:
        card.end_at_last_refusal()
    if card.unknown_kernels:
        raise card.unknown_kernels[0]
    return card, refused


def _reached(function: Callable[..., Any]) -> dict[str, Any]:
    """What it reaches by itself, by name."""
    try:
        reached = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return {}  # a builtin, or an object that is called
    return {**reached.globals, **reached.nonlocals}


def _refuse_live_closures(function: Callable[..., Any]) -> None:
    """That would be the real model, not a copy."""
    for name, value in _reached(function).items():
        if is_live(value):
            raise UsageError(
                f"guard: {getattr(function, '__name__', 'the function')} uses {name!r} ({type(value).__name__}) from "
                f"outside, and predicting it would change that: hand it over, guard(step, {name}, ...), so that a copy "
                "is used"
            )
