"""The prediction of a job: the verdict and account of its trace, and what only a job knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramcast.base.shown import Shown
from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job
from vramcast.memory import Account, Prediction
from vramcast.memory.cards import CardFit
from vramcast.memory.parameters import ModuleParameters, ParameterNode
from vramcast.memory.stages import Stage
from vramcast.prediction.job_account import JobAccount
from vramcast.prediction.step_time import job_throughput, steps_per_epoch
from vramcast.timing import StepTime, Throughput
from vramcast.trace import Note, StepTrace

if TYPE_CHECKING:
    from vramcast.features.explain.explain import JobExplanation


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JobPrediction(Shown):
    """What a job would take on one card."""

    job: Job
    prediction: Prediction
    parameters: ParameterNode
    stages: Stage
    output_shapes: Mapping[str, tuple[int, ...]]
    cards: tuple[CardFit, ...]
    sizes: Mapping[str, int]
    recognised_as: str = ""
    input_shapes: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict, repr=False)
    parameter_rows: tuple[ModuleParameters, ...] = field(default=(), repr=False)
    held_outputs_bytes: int = 0
    """Outputs of stages that later stages, not only the next one, hold."""
    pinned_batch_bytes: int = 0
    """What a batch takes in the computer's pinned memory, where the data loader pins it."""

    @property
    def fits(self) -> bool:
        return self.prediction.fits

    @property
    def gpu(self) -> GpuSpec:
        return self.prediction.gpu

    @property
    def peak_allocated_bytes(self) -> int:
        return self.prediction.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self.prediction.peak_reserved_bytes

    @property
    def device_bytes(self) -> int:
        return self.prediction.device_bytes

    @property
    def headroom_bytes(self) -> int:
        return self.prediction.headroom_bytes

    @property
    def host_bytes(self) -> int:
        return self.prediction.host_bytes

    @property
    def account(self) -> Account:
        return self.prediction.account

    @property
    def notes(self) -> tuple[Note, ...]:
        return self.prediction.notes

    @property
    def trace(self) -> StepTrace | None:
        return self.prediction.trace

    @property
    def samples_per_step(self) -> int:
        return self.job.samples_per_step

    @property
    def steps_per_epoch(self) -> int | None:
        return steps_per_epoch(self.job)

    @property
    def time(self) -> StepTime | None:
        """How long a step of the job takes, its further passes, other cards and data included; None where it is not
        known."""
        return self.prediction.time

    @property
    def step_seconds(self) -> float | None:
        return None if self.time is None else self.time.seconds

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds of a step by phase; empty where they are not known."""
        return {} if self.time is None else self.time.phases

    @property
    def throughput(self) -> Throughput | None:
        return job_throughput(self.job, self.time, self.sizes)

    def explain(self, module: str, depth: int | None = None) -> JobExplanation:
        """The arithmetic behind the numbers of a module: a dotted name, or a pattern such as "model.layers.*"."""
        import vramcast

        return vramcast.explain(self, module, depth=depth)

    def job_account(self) -> JobAccount:
        """What reports read."""
        return JobAccount(
            name=self.job.name,
            recognised_as=self.recognised_as,
            task=self.job.task,
            sizes=self.sizes,
            samples_per_step=self.samples_per_step,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.job.dataset.epochs if self.job.dataset is not None else None,
            prediction=self.prediction,
            throughput=self.throughput,
            parameters=self.parameters,
            stages=self.stages,
            output_shapes=self.output_shapes,
            cards=self.cards,
            held_outputs_bytes=self.held_outputs_bytes,
            pinned_batches=self.job.pinned_batches,
            pinned_batch_bytes=self.pinned_batch_bytes,
        )
