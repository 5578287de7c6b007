"""Run a job's training loop on a virtual GPU for a few steps."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vramcast import overlay
from vramcast.base.access import check_code
from vramcast.base.errors import CannotPredict, StepRefused, TooManyElements, UsageError, VramcastError
from vramcast.base.factories import check_arguments, load_factory, without_collections
from vramcast.base.sealing import sealed
from vramcast.base.units import format_gib
from vramcast.card.compiled.compiler import OFF_BY, why_not
from vramcast.card.device.context import VirtualGpu, virtual_gpu
from vramcast.card.device.hidden_output import libraries_quiet
from vramcast.card.device.recording import NO_LIMIT, Recording, fits_with_smaller_workspaces, recording
from vramcast.card.dispatch.failures import job_failed, step_failed
from vramcast.card.distributed.world import World
from vramcast.gpus import GpuSpec
from vramcast.jobs.building.build import build_component
from vramcast.jobs.building.built import Built
from vramcast.jobs.building.offload import Offloaded
from vramcast.jobs.building.quantization import whole_experts_bytes
from vramcast.jobs.code_places import code_in
from vramcast.jobs.compiling import why_not_compiled
from vramcast.jobs.schema import Job, Script
from vramcast.jobs.schema.training import MOST_ACCUMULATED
from vramcast.jobs.training.averaging import Average
from vramcast.jobs.training.divided import Layout, build_part, in_words
from vramcast.jobs.training.loop import TrainingLoop
from vramcast.jobs.training.optimizers import make_optimizers
from vramcast.jobs.training.parallel import check_supported, data_parallel
from vramcast.jobs.training.pipeline import PipelineLoop
from vramcast.jobs.training.plan import main_component, make_plan
from vramcast.jobs.training.zero import Engine, stays_in_host_memory
from vramcast.jobs.training.zero import in_words as zero_in_words
from vramcast.memory.lengthening import SETTLED_STEPS
from vramcast.memory.parameters import ModuleParameters
from vramcast.memory.repeated_steps import END_OF_PASS, END_OF_STEP, full_length
from vramcast.prediction.module_shapes import OutputShapes
from vramcast.prediction.parameter_table import count_parameters
from vramcast.scripts.runner import run_script_on
from vramcast.trace import UNKNOWN_SIZE, Note, StepTrace

Progress = Callable[[str], None]

_STEPS_IN_FULL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    trace: StepTrace
    parameters: tuple[ModuleParameters, ...]
    output_shapes: Mapping[str, tuple[int, ...]]
    """Output shapes of the modules that returned one tensor, in the first step."""
    input_shapes: Mapping[str, tuple[tuple[int, ...], ...]]
    sizes: Mapping[str, int]
    """All sizes, those that were assumed too."""
    notes: tuple[Note, ...]


@dataclass
class _Session:
    """Everything that a script would still hold in its variables when it ends."""

    built: dict[str, Built] = field(default_factory=dict)
    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    averages: list[Average] = field(default_factory=list)
    shapes: OutputShapes = field(default_factory=OutputShapes)
    sizes: dict[str, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    parameters: tuple[ModuleParameters, ...] = ()
    loop: Any = None


def trace_job(
    job: Job,
    gpu: GpuSpec,
    *,
    steps: int = 3,
    allocator_conf: str | None = None,
    limit_bytes: int | None = None,
    progress: Progress = lambda text: None,
) -> TracedJob:
    """The trace of `steps` steps, without a limit, so that what the job needs is known in full; the verdict comes from
    replaying it under the card's limit. Only where convolutions might do with smaller workspaces is it traced again
    under the limit. Of three steps the last repeats the second, and is not run where that is certain."""
    check_supported(job)
    if job.script is not None:
        check_code(f"script.path: {job.script.path}")
    if job.script is not None and not os.path.isfile(job.script.path):
        raise UsageError(f"script.path: no such script: {job.script.path}")
    full: StepTrace | None = None
    if steps == _STEPS_IN_FULL and repeats_itself(job):
        run, session = _run(job, gpu, 2, allocator_conf, NO_LIMIT, progress, briefly=True)
        brief = run.trace()
        if not any(note.topic in {"unknown value", UNKNOWN_SIZE} for note in brief.notes):
            with without_collections():
                full = full_length(brief, min(job.accumulation, MOST_ACCUMULATED))
    if full is None:
        run, session = _run(job, gpu, steps, allocator_conf, NO_LIMIT, progress)
        full = run.trace()
    capacity_bytes = gpu.total_memory_bytes - full.context_bytes if limit_bytes is None else limit_bytes
    trace = full.changed(capacity_bytes=capacity_bytes)
    if fits_with_smaller_workspaces(trace, capacity_bytes):
        progress("trying smaller workspaces")
        limited_steps = max(steps, SETTLED_STEPS)
        limited, limited_session = _run(job, gpu, limited_steps, allocator_conf, limit_bytes, progress)
        if not limited.refused:
            session, trace = limited_session, limited.trace()
    return TracedJob(
        trace=trace,
        parameters=session.parameters,
        output_shapes=session.shapes.outputs,
        input_shapes=session.shapes.inputs,
        sizes=session.sizes,
        notes=tuple(session.notes),
    )


def trace_under_limit(
    job: Job, gpu: GpuSpec, *, steps: int, allocator_conf: str | None, limit_bytes: int
) -> StepTrace | None:
    """The trace of a run with limited memory, in which convolutions use smaller workspaces; None where it runs out of
    memory all the same."""
    run, _ = _run(job, gpu, steps, allocator_conf, limit_bytes, lambda text: None)
    return None if run.refused else run.trace()


def repeats_itself(job: Job) -> bool:
    """Every step after the first does the same, and so does every pass after the first of a step.

    Not so between cards, which exchange gradients after the last pass only; nor in the computer's memory, where pinned
    blocks are kept for the next; nor where kernels are timed when they are first launched; nor for code that is not
    ours.
    """
    return (
        job.step is None
        and job.script is None
        and job.task == "training"
        and job.gpus.effective_strategy == "none"
        and not job.gpus.divides_model
        and not job.torch_compile
        and not job.offload.changed_fields
        and (job.evaluation is None or job.evaluation.when == "before")
    )


def _run(
    job: Job,
    gpu: GpuSpec,
    steps: int,
    conf: str | None,
    limit_bytes: int | None,
    progress: Progress,
    briefly: bool = False,
) -> tuple[Recording, _Session]:
    """`briefly`: as few passes as say what the others do, see `_marked`."""
    card = virtual_gpu(gpu, allocator_conf=conf, limit_bytes=limit_bytes, source=job.name)
    session = _Session()
    if job.script is not None:
        return _script(job.script, card, steps, progress), session
    card.log_ops(after_steps=None)
    kept_off_files = overlay.protected(card.note) if code_in(job) else sealed()
    if not code_in(job):
        card.skip_host_draws()
    with _environment(job), kept_off_files, recording(card) as run, _settings(job), libraries_quiet():
        try:
            if job.step is not None:
                _own_step(job, card, session, steps, progress)
            else:
                _prepare(job, card, session, progress)
                after_step = _marked(card, session.loop) if briefly else _nothing
                _steps(job, card, session, steps, progress, after_step)
            session.parameters = count_parameters(session.modules, session.optimizers, by_zero=job.gpus.runs_zero)
        except (VramcastError, KeyboardInterrupt, torch.OutOfMemoryError):
            raise
        except (RuntimeError, ValueError) as error:  # a GradScaler refuses fp16 gradients with the latter
            kind = StepRefused if isinstance(error, TooManyElements) else CannotPredict
            raise kind(f"{job.name}: {step_failed(error, 'the step', card.assumed_values)}") from error
    return run, session


def _script(script: Script, card: VirtualGpu, steps: int, progress: Progress) -> Recording:
    """What it prints is not the report."""
    progress(f"running {script.path}")
    with contextlib.redirect_stdout(sys.stderr):
        return run_script_on(card, script.path, [str(word) for word in script.arguments], steps=steps)


def _prepare(job: Job, card: VirtualGpu, session: _Session, progress: Progress) -> None:
    main_component(job)  # before anything is built, for its message
    own = {name: component for name, component in job.components.items() if component.same_as is None}
    layout = Layout(job.gpus) if job.gpus.divides_model else None
    for name in own:
        progress(f"building {name}")
        on_host = stays_in_host_memory(job, name)
        built = build_component(name, job, on_host=on_host) if layout is None else build_part(name, job, layout)
        session.built[name] = built
        card.name_module(built.module, name)
        for i, copy in enumerate(built.copies, 2):
            card.name_module(copy, f"{name} (copy {i})")
        session.modules[name] = built.module
        session.notes += _about_experts(name, job, built)
        frozen_steps = job.components[name].freeze_steps
        if frozen_steps:
            text = f"{name}: predicted for after its first {frozen_steps:,} steps, when all is trained"
            session.notes.append(Note("frozen at first", text))
    trained = {name: session.modules[name] for name, component in own.items() if component.is_trained}
    if job.task == "training":
        if job.ema is not None and job.ema.enabled:
            for name in job.ema.components or trained:
                average = Average(job.ema, trained[name])
                card.name_module(average.module, f"{name} (EMA)")
                session.averages.append(average)
        session.optimizers = make_optimizers(job.optimizer, trained, job.offload)
    shared = {name: component.same_as for name, component in job.components.items() if component.same_as is not None}
    for name, other in shared.items():
        session.built[name] = session.built[other]
    plan = make_plan(job, session.built)
    session.sizes = dict(plan.sizes)
    if plan.assumed_sizes:
        sizes = ", ".join(f"{name} {size}" for name, size in plan.assumed_sizes.items())
        session.notes.append(
            Note("assumed sizes", f"{sizes}: what the model's config suggests; say others under sizes")
        )
    if layout is not None:
        session.notes.append(Note("several GPUs", in_words(job)))
        if job.gpus.pipeline > 1:
            name = plan.model
            session.loop = PipelineLoop(
                job, layout, session.modules[name], session.built[name], session.optimizers, plan.sizes, card.mark
            )
            return
    callable_modules = dict(session.modules)
    if job.task == "training":
        callable_modules = data_parallel(job, callable_modules, session.notes)
    engine: Engine | None = None
    if job.gpus.runs_zero:
        passes, batch = min(job.accumulation, MOST_ACCUMULATED), job.effective_sizes["batch"]
        engine = Engine(job, session.built[plan.model], session.optimizers[0], passes, batch)
        callable_modules[plan.model] = engine.module
        session.notes.append(Note("several GPUs", zero_in_words(job)))
    for name, other in shared.items():
        callable_modules[name] = callable_modules[other]
    if job.torch_compile:
        _compile(job, plan.model, callable_modules[plan.model], session.notes)
    if job.accumulation > MOST_ACCUMULATED:
        text = f"{MOST_ACCUMULATED} of {job.accumulation} passes of a step are traced; the others repeat the second"
        session.notes.append(Note("accumulation", text))
    offloaded = Offloaded(job, callable_modules, [call.component for call in plan.calls])
    session.loop = TrainingLoop(job, plan, callable_modules, session.optimizers, session.averages, offloaded, engine)


def _about_experts(name: str, job: Job, built: Built) -> list[Note]:
    """What is left whole of a model that was to be quantized."""
    component = job.components[name]
    size_bytes = whole_experts_bytes(built.model) if component.quantization != "none" else 0
    if component.quantize_experts or not size_bytes:
        return []
    text = (
        f"{name}: its experts ({format_gib(size_bytes)}) are not quantized: transformers 5 has them in one parameter a "
        f"layer, and bitsandbytes replaces linear layers alone; --set components.{name}.quantize_experts=true predicts "
        "them in 4 bits (axolotl's quantize_moe_experts)"
    )
    return [Note("experts", text)]


def _compile(job: Job, name: str, module: nn.Module, notes: list[Note]) -> None:
    """As Trainers and most scripts do: the whole model, in the default mode."""
    reason = why_not() or why_not_compiled(job)
    if reason is None:
        module.compile()
    else:
        notes.append(Note("torch.compile", f"{name} is predicted as eager code: {reason}; {OFF_BY}"))


def _nothing() -> None:
    """Is done after a step."""


def _marked(card: VirtualGpu, loop: TrainingLoop) -> Callable[[], None]:
    """Two passes in the first step at most, one in the next, and marks after each; what is done after a step.

    Of the second pass the ops are noted, as of the last step: its time is that of the passes which are not run.
    """
    loop.passes = min(2, loop.passes)
    loop.later_passes = 1
    made = itertools.count(1)

    def after_pass() -> None:
        card.mark(END_OF_PASS)
        number = next(made)
        if number <= loop.passes:
            card.note_ops(number == 1 < loop.passes)

    loop.after_pass = after_pass
    return lambda: card.mark(END_OF_STEP)


def _steps(
    job: Job, card: VirtualGpu, session: _Session, steps: int, progress: Progress, after_step: Callable[[], None]
) -> None:
    loop = session.loop
    when = job.evaluation.when if job.evaluation is not None else None
    if when == "before":
        loop.evaluate()
    iterations = loop.run()
    session.shapes.watch(session.modules)
    for step in range(steps):
        progress(f"step {step + 1} of {steps}")
        with _timed(card, step, steps):
            next(iterations)
        after_step()
        session.shapes.stop()
        if when == "between" and step == 0:
            loop.evaluate()
    if when == "after":
        loop.evaluate()
    if loop.loss_was_guessed:
        text = "the mean of the model's output is taken, for want of a target; say one under loss"
        session.notes.append(Note("loss", text))
    session.loop = (loop, iterations)  # the loop's variables live as long as a script's


def _own_step(job: Job, card: VirtualGpu, session: _Session, steps: int, progress: Progress) -> None:
    assert job.step is not None
    factory = load_factory(job.step.factory)
    arguments = {**_sizes_taken_by(factory, job), **job.step.arguments}
    check_arguments(factory, arguments)
    session.sizes = dict(job.sizes)
    progress("building")
    try:
        step = factory(**arguments)
        session.loop = step
        if not callable(step):
            raise UsageError(f"step.factory: {job.step.factory} returns {type(step).__name__}, not a function")
        for i in range(steps):
            progress(f"step {i + 1} of {steps}")
            with _timed(card, i, steps):
                step()
    except (VramcastError, TooManyElements, torch.OutOfMemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise job_failed(error, "step.factory", job.step.factory, card.assumed_values) from error


def _timed(card: VirtualGpu, step: int, steps: int) -> AbstractContextManager[None]:
    """The last step is the one whose time is worked out: the first ones still make optimizer state."""
    return card.iteration() if step == steps - 1 else contextlib.nullcontext()


def _sizes_taken_by(factory: Callable[..., Any], job: Job) -> dict[str, int]:
    taken = inspect.signature(factory).parameters
    return {name: size for name, size in job.effective_sizes.items() if name in taken and name in job.sizes}


@contextmanager
def _environment(job: Job) -> Iterator[None]:
    """What torchrun sets for the rank that is predicted, where the model is divided over cards."""
    if not (job.gpus.divides_model or job.gpus.runs_zero):
        yield
        return
    gpus = job.gpus
    world = World(gpus.rank or 0, gpus.count, (gpus.rank or 0) % gpus.node_size, gpus.node_size)
    before = dict(os.environ)
    os.environ.update(world.environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _settings(job: Job) -> Iterator[None]:
    """Switches of torch that the job wants, put back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.benchmark, torch.is_grad_enabled(), torch.get_default_dtype()
    matmul.allow_tf32, cudnn.benchmark = job.precision.uses_tf32, job.cudnn_benchmark
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        matmul.allow_tf32, cudnn.benchmark = before[:2]
        torch.set_grad_enabled(before[2])
        torch.set_default_dtype(before[3])
