"""Run an unmodified training script on a virtual GPU and stop it after a few optimizer steps."""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType, TracebackType

import torch

from vramcast import overlay
from vramcast.errors import CannotPredict, UsageError
from vramcast.gpus import GpuSpec
from vramcast.memory import Prediction, predict
from vramcast.memory.orders import worst_order
from vramcast.trace import Note, StepTrace
from vramcast.units import format_size
from vramcast.virtual_gpu.captures import Captures
from vramcast.virtual_gpu.context import VirtualGpu, virtual_gpu
from vramcast.virtual_gpu.library_stages import stages_ahead
from vramcast.virtual_gpu.script_ending import ScriptEnding
from vramcast.virtual_gpu.stopping import LONGEST_AT_END, OWN_STEPS, USUAL_STEPS, Stopping, Until, counted
from vramcast.virtual_gpu.unknown import is_machinery, short_path
from vramcast.virtual_gpu.unreached import MARK, Unreached

Progress = Callable[[str], None]


def _silent(text: str) -> None: ...


_NEEDS_REAL_CUDA = ("must be a CUDA tensor", "must be on CUDA", "to be a CUDA tensor", "expected a CUDA tensor")


class ScriptFailed(CannotPredict):
    """The script ended with an error of its own; `traceback_text` is what Python would have printed."""

    def __init__(self, message: str, traceback_text: str = "") -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


def run_script(
    path: str,
    argv: Sequence[str] = (),
    *,
    gpu: str | GpuSpec,
    steps: int | None = 3,
    until: str | None = None,
    allocator_conf: str | None = None,
    limit_bytes: int | None = None,
    progress: Progress = _silent,
) -> Prediction:
    """Run `path` as `python path *argv` would, on a virtual `gpu`, until every optimizer has made `steps` steps, or to
    its end (None), or until it has shown an "epoch" or the "longest" batches.

    The prediction's `trace` can be saved. Raises ScriptFailed when the script fails for another reason than memory.
    """
    if not os.path.isfile(path):
        raise UsageError(f"no such script: {path}")
    card = virtual_gpu(
        gpu, allocator_conf=allocator_conf, limit_bytes=limit_bytes, source=" ".join([os.fspath(path), *argv])
    )
    run_script_on(card, path, argv, steps=steps, until=None if until is None else Until(until), progress=progress)
    if card.unknown_kernels:  # the script caught the error and went another way than it would on the card
        raise card.unknown_kernels[0]
    return predict(_in_worst_order(card.trace())) if until == Until.LONGEST.value else card.prediction()


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
) -> bool:
    """The same on a card that was not used yet; true when the script ended because memory was refused."""
    if until is not None:
        steps = None
    script = _read(path)

    def note_what_is_ahead(frame: FrameType) -> None:
        ahead = [script.summary(frame), *(() if stopping.has_evaluated else stages_ahead(frame))]
        if any(ahead):
            parts = ", ".join(filter(None, ahead))
            card.note("not run", f"{parts}; it may take more memory than the steps seen: --whole runs it")

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
        _as_main(path, argv) as main,
        card,
        captures.watched(),
        stopping.watched(),
        _torch_settings(),
    ):
        vars(main)[MARK] = script.reached
        ending = ScriptEnding(card, note_what_is_missing)
        try:
            failure = ending.run(lambda: exec(script.compile(), vars(main)))
        except KeyboardInterrupt:
            if steps is not None:
                raise
            failure = None
            stopping.interrupted()
    if stopping.failure is not None:
        raise stopping.failure
    if ending.children.account_for(failure):
        return True
    if isinstance(failure, torch.OutOfMemoryError):
        card.end_at_last_refusal()
        _note_refusal(card, stopping, _where(failure.__traceback__, path))
    elif failure is not None and not card.trace().ends_refused:
        raise _explain(failure, path, stopping.fewest)
    if stopping.reason and not card.trace().n_blocks:
        raise CannotPredict(f"{stopping.reason}, and nothing was allocated on the GPU until then")
    if not ending.children.used_the_card:
        note_what_is_missing(failure is not None)
    return failure is not None


def _note_refusal(card: VirtualGpu, stopping: Stopping, where: str) -> None:
    text = f"the script ends here in step {stopping.fewest + 1:,}"
    card.note("out of memory", "; ".join(filter(None, (text, stopping.refused_with))), where)


def _read(path: str) -> Unreached:
    with open(path, "rb") as file:
        source = file.read()
    try:
        script = Unreached(source, path)
        script.compile()
        return script
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(f"{short_path(path)}{line}: not a Python script: {error.args[0]}") from None


@contextmanager
def _as_main(path: str, argv: Sequence[str]) -> Iterator[ModuleType]:
    """A fresh __main__ as `python path *argv` makes it; everything is put back afterwards."""
    main = ModuleType("__main__")
    vars(main).update(__file__=path, __builtins__=builtins, __cached__=None)
    before = sys.modules["__main__"], sys.argv, list(sys.path), os.getcwd(), dict(os.environ)
    sys.modules["__main__"] = main
    sys.argv = [path, *argv]
    sys.path[:1] = [os.path.dirname(os.path.realpath(path))]
    try:
        yield main
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before[:3]
        os.chdir(before[3])
        os.environ.clear()
        os.environ.update(before[4])


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


def _explain(failure: BaseException, path: str, steps: int) -> CannotPredict:
    if isinstance(failure, CannotPredict):
        return failure
    if isinstance(failure, SystemExit):
        what = failure.code if isinstance(failure.code, str) else f"exit code {failure.code}"
        return ScriptFailed(f"{short_path(path)} ended itself after {counted(steps)}: {what}")
    text = "".join(traceback.format_exception(type(failure), failure, _from_script(failure.__traceback__)))
    said = str(failure).strip().splitlines()
    reason = f"{type(failure).__name__}: {said[0]}" if said else type(failure).__name__
    message = f"{_where(failure.__traceback__, path)}: the script failed: {reason} (--traceback shows all of it)"
    if any(phrase in str(failure) for phrase in _NEEDS_REAL_CUDA):
        message += (
            "\nA compiled extension looked at the tensor itself. Wrap the call in torch.library.custom_op and teach "
            'vramcast what it returns with @vramcast.rule("namespace::op").'
        )
    return ScriptFailed(message + overlay.hint(failure), text)


def _from_script(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first line on."""
    while trace is not None and is_machinery(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _where(trace: TracebackType | None, path: str) -> str:
    """file:line of the innermost frame in the script itself or, failing that, in any of the user's files."""
    found = short_path(path)
    in_script = False
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if filename == path:
            found, in_script = f"{short_path(filename)}:{trace.tb_lineno}", True
        elif not in_script and not is_machinery(filename):
            found = f"{short_path(filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
