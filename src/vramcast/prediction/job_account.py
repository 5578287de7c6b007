"""All that is said about a job's memory, as plain data for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vramcast.memory.cards import CardFit
from vramcast.memory.parameters import ParameterNode
from vramcast.memory.prediction import Prediction
from vramcast.memory.stages import Stage
from vramcast.timing import StepTime, Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAccount:
    name: str
    recognised_as: str
    """What kind of file, folder or function the job was read from; empty for one made in Python."""
    task: str
    """training or inference"""
    sizes: Mapping[str, int]
    samples_per_step: int
    steps_per_epoch: int | None
    epochs: float | None
    prediction: Prediction
    parameters: ParameterNode
    stages: Stage
    output_shapes: Mapping[str, tuple[int, ...]]
    cards: tuple[CardFit, ...]
    throughput: Throughput | None = None
    held_outputs_bytes: int = 0
    """Outputs of stages that later stages, not only the next one, hold."""
    pinned_batches: int = 0
    """Batches that the data loader holds in the computer's pinned memory at a time."""
    pinned_batch_bytes: int = 0
    """What one of them takes there."""

    @property
    def time(self) -> StepTime | None:
        return self.prediction.time
