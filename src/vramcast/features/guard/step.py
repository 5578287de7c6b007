"""A training step of the user's own, run on the virtual card in this process with everything put back afterwards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from vramcast import overlay
from vramcast.base.errors import CannotPredict, UsageError, VramcastError
from vramcast.card.device.context import VirtualGpu, virtual_gpu
from vramcast.card.device.recording import NO_LIMIT, Recording, fits_with_smaller_workspaces, recording
from vramcast.card.dispatch.failures import step_failed
from vramcast.features.guard.accelerate import accelerators_in, lent
from vramcast.features.guard.closures import reached_by, rebuilt, to_copy
from vramcast.features.guard.copies import Copies, bytes_on_card
from vramcast.features.guard.fallbacks import batch_keys, smaller_batches
from vramcast.features.guard.process_state import kept
from vramcast.gpus import GpuSpec
from vramcast.trace import StepTrace


class StepSubject:
    def __init__(self, function: Callable[..., Any], objects: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        while isinstance(function, functools.partial):
            objects, arguments = [*function.args, *objects], {**function.keywords, **arguments}
            function = function.func
        self._function = function
        self._objects = list(objects)
        self._arguments = dict(arguments)
        self._reached = [*to_copy(function), *_owner(function)]
        used = [*reached_by(function).values(), *self._objects, *self._arguments.values()]
        self._accelerators = accelerators_in(used)
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.gpu: str | None = None

    def own_bytes(self) -> int | None:
        return bytes_on_card([self._objects, self._arguments, self._reached])

    def trace(self, gpu: GpuSpec, changes: Mapping[str, Any], available_bytes: int, steps: int) -> StepTrace:
        copies = Copies([self._objects, self.apply(changes), *self._reached])

        def program(card: VirtualGpu) -> None:
            with lent(self._accelerators) as tell:
                objects, arguments, *reached = copies.make()
                tell([*objects, *reached])
                by_id = {id(original): copy for original, copy in zip(self._reached, reached, strict=True)}
                function = rebuilt(self._function, by_id)
                result = function(*objects, **arguments)
                if callable(result) and not self._objects:
                    for _ in range(steps):
                        result()
                    return
                for _ in range(steps - 1):
                    result = function(*objects, **arguments)

        fresh = not self._objects and not self._reached and not self._accelerators
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
    trace = _run(program, gpu, NO_LIMIT, name, fresh).trace()
    capacity = available_bytes - trace.context_bytes
    if capacity > 0 and fits_with_smaller_workspaces(trace, capacity):
        limited = _run(program, gpu, capacity, name, fresh)
        if not limited.refused:
            return limited.trace()
    return trace


def _run(program: Callable[[VirtualGpu], None], gpu: GpuSpec, limit_bytes: int, name: str, fresh: bool) -> Recording:
    card = virtual_gpu(gpu, limit_bytes=limit_bytes, source=name)
    with overlay.protected(card.note), kept(fresh=fresh), recording(card) as run:
        try:
            program(card)
        except (VramcastError, KeyboardInterrupt, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise CannotPredict(step_failed(error, name, card.assumed_values)) from error
    return run


def _owner(function: Callable[..., Any]) -> list[Any]:
    """The object whose method it is, or that is called."""
    if isinstance(function, MethodType):
        return [function.__self__]
    return [] if isinstance(function, FunctionType) else [function]
