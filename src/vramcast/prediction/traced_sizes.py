"""One job at different sizes: its traces, and whether each fits a card.

A run that does not fit with the workspaces that its convolutions like best is traced once more under the limit, every
step of it: there they do with smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable

from vramcast.base.errors import CannotPredict, StepRefused
from vramcast.gpus import GpuSpec
from vramcast.jobs.load import with_overrides
from vramcast.jobs.schema import Job
from vramcast.memory.lengthening import SETTLED_STEPS, lengthened
from vramcast.memory.prediction import context_on
from vramcast.memory.replay import Replay, convolves, highest_without_workspaces, replay
from vramcast.prediction.axes import Axis
from vramcast.trace import StepTrace

Progress = Callable[[str], None]

NO_LIMIT = 2**60


class TracedSizes:
    """Traces of one job at different sizes, kept, and which of them fit."""

    def __init__(
        self,
        job: Job,
        axis: Axis,
        *,
        steps: int = 3,
        allocator_conf: str | None = None,
        progress: Progress = lambda text: None,
        where: str = "the options",
        settled_steps: int = SETTLED_STEPS,
        smaller_workspaces: bool = True,
    ) -> None:
        """`settled_steps`: how many steps must fit, the last traced one repeated. `smaller_workspaces`: convolutions
        may do with smaller ones, which only real traces under the limit can tell; else they get what they ask for."""
        self.job = job
        self.axis = axis
        self._steps = steps
        self._conf = allocator_conf if allocator_conf is not None else job.allocator_conf
        self._progress = progress
        self._where = where
        self._settled_steps = settled_steps
        self._smaller_workspaces = smaller_workspaces
        self._traces: dict[tuple[object, ...], dict[int, StepTrace]] = {}
        self._known: dict[tuple[int, str, int, int | None], tuple[bool, int]] = {}
        self._less_workspace: set[tuple[int, str, int, int | None]] = set()
        """Those that fit only with smaller workspaces."""
        self.n_traced = 0
        self.refusal: CannotPredict | None = None
        """Why the model did not take a size."""

    def at(self, number: int) -> Job:
        return with_overrides(self.job, self.axis.changes(self.job, number), self._where)

    def trace(self, number: int, gpu: GpuSpec) -> StepTrace:
        """The trace at this size, without a limit, and as long as the verdict needs it."""
        known = self._traces.setdefault(kernels_of(gpu), {})
        if number not in known:
            known[number] = self._run(number, gpu)
        return known[number]

    def add(self, number: int, gpu: GpuSpec, trace: StepTrace) -> None:
        """A trace that is there already."""
        self._traces.setdefault(kernels_of(gpu), {})[number] = lengthened(trace, self._settled_steps)

    def _run(self, number: int, gpu: GpuSpec) -> StepTrace:
        from vramcast.prediction.tracing import trace_job

        self._count(number, gpu)
        traced = trace_job(self.at(number), gpu, steps=self._steps, allocator_conf=self._conf, limit_bytes=NO_LIMIT)
        return lengthened(traced.trace, self._settled_steps)

    def _limited(self, number: int, gpu: GpuSpec, capacity_bytes: int) -> Replay | None:
        """The run that may take no more, every step of it; None where it is refused. Each step finds other room and
        convolutions choose anew."""
        from vramcast.prediction.tracing import trace_under_limit

        self._count(number, gpu)
        steps = max(self._steps, self._settled_steps)
        try:
            trace = trace_under_limit(
                self.at(number), gpu, steps=steps, allocator_conf=self._conf, limit_bytes=capacity_bytes
            )
        except StepRefused:
            return None
        run = None if trace is None else replay(trace, self._conf, capacity_bytes)
        return run if run is not None and run.completed else None

    def _count(self, number: int, gpu: GpuSpec) -> None:
        sizes = ", ".join(f"{name} {size:,}" for name, size in self.axis.sizes(number).items())
        self._progress(f"{sizes} on {gpu.short_name}")
        self.n_traced += 1

    def refuses(self, number: int, gpu: GpuSpec) -> bool:
        """The model itself does not take this size: a window or a patch is larger, say. A batch of one it takes."""
        if self.axis.name == "batch":
            return False
        try:
            self.trace(number, gpu)
        except CannotPredict as error:
            self.refusal = self.refusal or error
            return not isinstance(error, StepRefused)
        return False

    def needs(self, batch: int, gpu: GpuSpec, limit_bytes: int | None = None) -> tuple[bool, int]:
        """Whether it fits, and the bytes it takes on the card, or would take.

        `limit_bytes` is what PyTorch may reserve at most, instead of what the card has beside the context.
        """
        key = _key(batch, gpu, limit_bytes)
        if key not in self._known:
            try:
                self._known[key] = self._work_out(batch, gpu, limit_bytes)
            except StepRefused:
                if batch == 1:
                    raise
                self._known[key] = False, 0
        return self._known[key]

    def _work_out(self, batch: int, gpu: GpuSpec, limit_bytes: int | None) -> tuple[bool, int]:
        trace = self.trace(batch, gpu)
        capacity_bytes = capacity_of(trace, gpu, limit_bytes)
        run = replay(trace, self._conf, capacity_bytes)
        try_less = not run.completed and self._may_use_less_workspace(trace)
        if try_less and self.fits_with_less_workspace(batch, gpu, limit_bytes, trace):
            return self._known[_key(batch, gpu, limit_bytes)]
        shown = run if run.completed else replay(trace, self._conf, None)
        return run.completed, shown.peak_reserved.reserved_bytes + context_on(trace, gpu)

    def _may_use_less_workspace(self, trace: StepTrace) -> bool:
        return self._smaller_workspaces and convolves(trace)

    def fits_with_less_workspace(self, number: int, gpu: GpuSpec, limit_bytes: int | None, trace: StepTrace) -> bool:
        """Whether it runs where workspaces may be smaller than it would like. `trace`: of it, or what is worked out."""
        key = _key(number, gpu, limit_bytes)
        if key in self._known:
            return self._known[key][0]
        capacity_bytes = capacity_of(trace, gpu, limit_bytes)
        if highest_without_workspaces(trace) > capacity_bytes:
            return False
        run = self._limited(number, gpu, capacity_bytes)
        if run is None:
            return False
        self._less_workspace.add(key)
        self._known[key] = True, run.peak_reserved.reserved_bytes + context_on(run.trace, gpu)
        return True

    def needs_less_workspace(self, number: int, gpu: GpuSpec, limit_bytes: int | None = None) -> bool:
        """It fits, but only with smaller workspaces than it would like."""
        return self.needs(number, gpu, limit_bytes)[0] and _key(number, gpu, limit_bytes) in self._less_workspace

    def capacity(self, number: int, gpu: GpuSpec) -> int:
        """What PyTorch may reserve on the card."""
        return capacity_of(self.trace(number, gpu), gpu, None)


def _key(number: int, gpu: GpuSpec, limit_bytes: int | None) -> tuple[int, str, int, int | None]:
    return number, gpu.id, gpu.total_memory_bytes, limit_bytes


def capacity_of(trace: StepTrace, gpu: GpuSpec, limit_bytes: int | None) -> int:
    return gpu.total_memory_bytes - context_on(trace, gpu) if limit_bytes is None else limit_bytes


def kernels_of(gpu: GpuSpec) -> tuple[object, ...]:
    """What the choice of kernels and workspaces depends on: cards that agree in it share their traces."""
    return gpu.compute_capability, gpu.sm_count, gpu.l2_bytes
