"""What a guard is asked about: a job, a training step, or a library's trainer. All answer the same questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from vramcast.gpus import GpuSpec
from vramcast.memory import Prediction, predict, with_time
from vramcast.trace import StepTrace


class Subject(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def gpu(self) -> str | None:
        """A card that it names itself, for when there is none here."""
        ...

    def own_bytes(self) -> int | None:
        """What of this process's tensors on the card belongs to it; None: all."""
        ...

    def trace(self, gpu: GpuSpec, changes: Mapping[str, Any], available_bytes: int, steps: int) -> StepTrace:
        """A few steps of it with `changes`, on a virtual card: without a limit, unless smaller convolution workspaces
        would make it fit."""
        ...

    def named(self, fallback: str) -> Iterator[Mapping[str, Any]]:
        """The changes that the name of a fallback stands for."""
        ...

    def apply(self, changes: Mapping[str, Any]) -> Any:
        """Make the changes where the subject can be changed, and give what to train with."""
        ...


def verdict_of(trace: StepTrace, available_bytes: int) -> Prediction:
    """The prediction where `available_bytes` are there for it, context and kernels included."""
    return with_time(predict(trace, capacity_bytes=max(1, available_bytes - trace.context_bytes)))
