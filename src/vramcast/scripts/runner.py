"""Run an unmodified training script on a virtual GPU and stop it after a few optimizer steps."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from vramcast import overlay
from vramcast.base.assumptions import Assumption
from vramcast.base.errors import CannotPredict
from vramcast.base.units import format_size
from vramcast.card.device.context import VirtualGpu, virtual_gpu
from vramcast.card.device.recording import Recording, recording
from vramcast.card.dispatch.failures import ScriptFailed, explain, where_in
from vramcast.card.dispatch.unknown import short_path
from vramcast.gpus import GpuSpec
from vramcast.memory import Prediction, predict, with_time
from vramcast.memory.orders import worst_order
from vramcast.scripts import frozen_parts, uneven_batches
from vramcast.scripts.captures import Captures
from vramcast.scripts.ending import ScriptEnding
from vramcast.scripts.library_stages import stages_ahead
from vramcast.scripts.program import Program, changed_environment
from vramcast.scripts.stopping import LONGEST_AT_END, OWN_STEPS, USUAL_STEPS, Stopping, Until, counted
from vramcast.scripts.swallowed import Swallowed
from vramcast.trace import Note, StepTrace
from vramcast.trace.schema import FROZEN_WEIGHTS

Progress = Callable[[str], None]


def _silent(text: str) -> None: ...


def run_script(
    path: str,
    argv: Sequence[str] = (),
    *,
    gpu: str | GpuSpec,
    is_module: bool = False,
    folder: str = "",
    environment: Mapping[str, str] | None = None,
    removed: Sequence[str] = (),
    steps: int | None = 3,
    until: str | None = None,
    allocator_conf: str | None = None,
    limit_bytes: int | None = None,
    assume: Sequence[Assumption] = (),
    compute_values: bool = False,
    packages: Sequence[str] = (),
    cards: int | None = None,
    progress: Progress = _silent,
) -> Prediction:
    """Run `path` as `python path *argv` would, on a virtual `gpu`, until every optimizer has made `steps` steps, or to
    its end (None), or until it has shown an "epoch" or the "longest" batches.

    `is_module`: `path` is the name of a module, to be run as by `python -m`.
    `folder`: where it is started, if not here.
    `environment`, `removed`: variables that a launcher sets, and those that it takes away.
    `assume`: values for reads of the card in certain lines.
    `compute_values`: every op is computed on the CPU too, so that the script reads what it would read on a card.
    `packages`: packages of kernels that will be installed, and are not here.
    `cards`: how many cards the script sees, where no launcher says so.

    The prediction's `trace` can be saved. Raises ScriptFailed when the script fails for another reason than memory.
    """
    with changed_environment(environment or {}, removed), contextlib.chdir(folder or os.curdir):
        program = Program(path, argv, is_module=is_module)
        card = virtual_gpu(
            gpu,
            allocator_conf=allocator_conf,
            limit_bytes=limit_bytes,
            source=" ".join([program.name, *argv]),
            packages=packages,
            cards=cards,
        )
        card.assume(assume)
        if compute_values:
            card.compute_values()
        try:
            chosen = None if until is None else Until(until)
            run = run_program_on(card, program, steps=steps, until=chosen, progress=progress)
        finally:
            card.check_assumptions()
    trace = run.trace()
    return with_time(predict(_in_worst_order(trace))) if until == Until.LONGEST.value else card.prediction()


def _in_worst_order(trace: StepTrace) -> StepTrace:
    """The longest batches were run in rising order; the last of them is repeated at the end, and stays there."""
    worst = worst_order(trace, OWN_STEPS + 1, trace.steps - LONGEST_AT_END) if not trace.ends_refused else None
    if worst is None:
        return trace
    text = f"{worst.tried} orders of these steps were replayed"
    if worst.reserved_bytes > worst.as_run_bytes:
        more = format_size(worst.reserved_bytes - worst.as_run_bytes)
        text += f"; the worst, which the figures are of, reserves {more} more than the order from short to long"
    else:
        text += ", and none reserves more than the one from short to long"
    return worst.trace.changed(notes=(*worst.trace.notes, Note("longest batches", text)))


def run_script_on(
    card: VirtualGpu,
    path: str,
    argv: Sequence[str] = (),
    *,
    steps: int | None = 3,
    until: Until | None = None,
    progress: Progress = _silent,
) -> Recording:
    """The same on a card that has not been used yet."""
    return run_program_on(card, Program(path, argv), steps=steps, until=until, progress=progress)


def run_program_on(
    card: VirtualGpu,
    program: Program,
    *,
    steps: int | None = 3,
    until: Until | None = None,
    progress: Progress = _silent,
) -> Recording:
    if until is not None:
        steps = None
    script, path = program.unreached, program.path
    swallowed = Swallowed(card, path)

    def note_what_is_ahead(frame: FrameType) -> None:
        ahead = [script.summary(frame), *(() if stopping.has_evaluated else stages_ahead(frame))]
        if any(ahead):
            parts = ", ".join(filter(None, ahead))
            card.note("not run", f"{parts}; it may take more memory than the steps seen: --whole runs it")
        if frozen := frozen_parts.summary(card.optimizers):
            card.note(FROZEN_WEIGHTS, frozen)

    captures = Captures(path)
    stopping = Stopping(
        card,
        steps,
        until=until,
        capture_is_ahead=captures.is_ahead,
        before_end=note_what_is_ahead,
        progress=progress,
    )
    card.log_ops(after_steps=(USUAL_STEPS if steps is None else steps) - 1)

    def note_what_is_missing(refused: bool) -> None:
        if not refused:
            stopping.note_what_is_missing()

    with (
        overlay.protected(card.note),
        program.as_main() as main,
        recording(card) as run,
        captures.watched(),
        stopping.watched(),
        _torch_settings(),
        _same_draws(),
    ):
        ending = ScriptEnding(card, note_what_is_missing)
        try:
            failure = ending.run(lambda: program.run(main, swallowed.note))
        except KeyboardInterrupt:
            if steps is not None:
                raise
            failure = None
            stopping.interrupted()
    if stopping.failure is not None:
        raise stopping.failure
    if ending.children.account_for(failure):
        run.refused = True
        return run
    if isinstance(failure, torch.OutOfMemoryError):
        run.end_refused()
        _note_refusal(card, stopping, where_in(failure, path))
    elif failure is not None and not card.trace().ends_refused:
        raise explain(failure, path, counted(stopping.fewest), card.assumed_values, program.argv)
    if stopping.reason and not card.trace().n_blocks:
        raise CannotPredict(f"{stopping.reason}, and nothing was allocated on the GPU until then")
    if ending.exited and not card.trace().n_blocks and not ending.children.used_the_card:
        if ending.handled is not None:
            raise ScriptFailed(f"{ending.handled.sentence()}; it handled that, and ended itself{ending.handled.remedy}")
        raise CannotPredict(
            f"{short_path(path)} ended itself and had allocated nothing on the GPU until then: do its arguments ask it "
            "to train?"
        )
    if not ending.children.used_the_card:
        if failure is None and not stopping.saw_a_step:
            swallowed.check()
            if card.had_optimizer and not stopping.saw_a_pass:
                raise CannotPredict(
                    "no training step was seen: the script made an optimizer, and ended by itself before it used a "
                    "model. Is its data set empty, or does an option leave the training out?"
                )
            if not card.trace().n_blocks:
                raise CannotPredict(
                    f"{short_path(path)} ended by itself and had allocated nothing on the GPU: does it ever move "
                    "anything to cuda, and did it catch and log an error (which would stand above)?"
                )
        note_what_is_missing(failure is not None)
        uneven = uneven_batches.summary(card.trace(), stopping.rounds) if steps is not None and failure is None else ""
        if uneven:
            card.note("batches", uneven)
    run.refused = failure is not None
    return run


def _note_refusal(card: VirtualGpu, stopping: Stopping, where: str) -> None:
    text = f"the script ends here in step {stopping.fewest + 1:,}"
    card.note("out of memory", "; ".join(filter(None, (text, stopping.refused_with))), where)


@contextmanager
def _same_draws() -> Iterator[None]:
    """A program that sets no seed begins with the same random numbers of Python and NumPy each time, as it does with
    PyTorch's: the same command gives the same answer."""
    numpy: Any
    try:
        import numpy
    except ImportError:  # torch does without
        numpy = None
    before = random.getstate(), None if numpy is None else numpy.random.get_state()
    random.seed(0)
    if numpy is not None:
        numpy.random.seed(0)
    try:
        yield
    finally:
        random.setstate(before[0])
        if numpy is not None:
            numpy.random.set_state(before[1])


@contextmanager
def _torch_settings() -> Iterator[None]:
    """What scripts set for good is put back: the next one in this process must not inherit it."""
    before = torch.is_grad_enabled(), torch.get_default_dtype(), _default_device()
    try:
        yield
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch.set_grad_enabled(before[0])
        torch.set_default_dtype(before[1])
        if _default_device() != before[2]:
            torch.set_default_device(before[2])
            if before[2] is None:  # older versions of get_default_device fail on the None that this leaves
                del torch._GLOBAL_DEVICE_CONTEXT.device_context


def _default_device() -> torch.device | None:
    """What set_default_device was told last; torch.get_default_device would make a tensor to find out."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device
