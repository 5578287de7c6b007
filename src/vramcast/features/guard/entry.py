"""`guard(...)`: predict, compare with what is free now, and watch. torch is imported when it is needed, not before."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from vramcast.base.errors import CannotPredict, DoesNotFit, GuardWarning, UsageError
from vramcast.base.shown import Shown
from vramcast.features.guard.fallbacks import Fallback, first_that_fits
from vramcast.features.guard.result import GuardResult
from vramcast.features.guard.room import room
from vramcast.features.guard.subject import Subject, verdict_of
from vramcast.features.guard.wording import in_the_users_language, overflow_text, sentence
from vramcast.gpus import GpuSpec
from vramcast.memory import Prediction

if TYPE_CHECKING:
    from vramcast.features.guard.watch import Watch

OnOverflow = Literal["raise", "warn"] | Callable[[GuardResult], object]


class Guard(Shown):
    """The result of the check, and the watch that goes on until `close()` or the end of a `with` block."""

    def __init__(self, result: GuardResult, watch: Watch) -> None:
        self.result = result
        self.watch = watch

    @property
    def fits(self) -> bool | None:
        return self.result.fits

    @property
    def prediction(self) -> Prediction | None:
        return self.result.prediction

    @property
    def verdict(self) -> str:
        """One sentence."""
        return sentence(self.result)

    @property
    def settings(self) -> Any:
        """What to train with: the Job, or the function's arguments, with the fallback put in."""
        return self.result.settings

    def log_to(self, tracker: Any, step: int = 0) -> None:
        """Give what was predicted, and what PyTorch has measured so far, to TensorBoard, Weights & Biases or a function
        (metrics.py)."""
        from vramcast.features.guard.metrics import log_to, measured, predicted

        log_to(tracker, {**predicted(self.result), **measured()}, step)

    def step(self) -> None:
        """Say that a step has ended. Steps of torch's optimizers are noticed without it."""
        self.watch.step()

    def close(self) -> None:
        self.watch.stop()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def guard(
    what: Any = None,
    *objects: Any,
    arguments: Mapping[str, Any] | None = None,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    device: int | None = None,
    on_overflow: OnOverflow = "raise",
    fallbacks: Sequence[Fallback] = (),
    margin: float = 0.0,
    steps: int = 3,
    warn_above: float = 0.9,
    report_dir: str | Path = ".",
    quiet: bool = False,
    allow_code: bool = False,
) -> Guard:
    """Predict `what`, compare it with what is free on the card now, and watch the training that follows.

    `what`: a job (a Job, a dict, or anything that `vramcast predict` takes); a Hugging Face Trainer; a function that
    builds everything on "cuda" and returns a function which makes one training step, called with `arguments`; or a
    training step itself, called as `what(*objects, **arguments)` with copies of the model, optimizer and batch that are
    given. None: only watch. Nothing of it touches the real card.

    `gpu`, `memory`, `device`: instead of what is free on the current card: a card by name, a size, another card here.
    `on_overflow`: "raise" (DoesNotFit), "warn", or a function that is given the GuardResult.
    `fallbacks`: changes that may be made so that it fits, in the order of preference: a name ("micro-batch",
    "checkpointing", "offload") or the changes themselves, e.g. {"batch": 4, "accumulation": 2}.
    `margin`: share of what is available to leave free. `warn_above`: share of the card above which the watch warns.
    `allow_code`: a file that `what` names may name code to run.
    """
    _check(on_overflow, margin, steps, warn_above)
    result = check_subject(
        None if what is None else subject_of(what, objects, arguments, allow_code=allow_code),
        gpu=gpu, memory=memory, device=device, fallbacks=fallbacks, margin=margin, steps=steps,
    )  # fmt: skip
    tell(result, on_overflow, quiet=quiet)
    return Guard(result, start_watch(result, device=device, warn_above=warn_above, report_dir=report_dir))


def subject_of(
    what: Any, objects: Sequence[Any], arguments: Mapping[str, Any] | None, *, allow_code: bool = False
) -> Subject:
    from vramcast.features.guard import job

    if _is_trainer(what):
        from vramcast.features.guard.hugging_face import TrainerSubject

        return TrainerSubject(what)
    if isinstance(what, (str, Path, Mapping)) or job.is_job(what):
        if objects or arguments:
            raise UsageError("guard: a job takes no further objects or arguments; change the job itself")
        return job.JobSubject(what, allow_code=allow_code)
    if callable(what):
        from vramcast.features.guard.step import StepSubject

        return StepSubject(what, objects, arguments or {})
    raise UsageError(f"guard: {type(what).__name__} is neither a job, a Trainer nor a function that makes a step")


def check_subject(
    subject: Subject | None,
    *,
    gpu: str | GpuSpec | None = None,
    memory: str | int | None = None,
    device: int | None = None,
    fallbacks: Sequence[Fallback] = (),
    margin: float = 0.0,
    steps: int = 3,
) -> GuardResult:
    """Predict, and where it does not fit, look for a fallback and apply it."""
    if subject is None:
        return GuardResult(name="the run", prediction=None, room=None, fits=None, reason="it is only watched")
    if _on_virtual_card():
        text = "this process runs on a virtual card, where the run itself is the prediction"
        return GuardResult(
            name=subject.name, prediction=None, room=None, fits=None, reason=text, settings=subject.apply({})
        )
    there = room(gpu, memory, device, own_bytes=subject.own_bytes(), otherwise=subject.gpu)
    available = int(there.available_bytes * (1 - margin))

    def predict(changes: Mapping[str, Any]) -> Prediction:
        return verdict_of(subject.trace(there.gpu, changes, available, steps), available)

    try:
        prediction = predict({})
    except CannotPredict as error:
        return GuardResult(
            name=subject.name, prediction=None, room=there, fits=None, reason=str(error), margin=margin,
            settings=subject.apply({}),
        )  # fmt: skip
    if prediction.fits or not fallbacks:
        return GuardResult(
            name=subject.name, prediction=prediction, room=there, fits=prediction.fits, margin=margin,
            settings=subject.apply({}),
        )  # fmt: skip
    tried, fitting = first_that_fits(fallbacks, predict, subject.named)
    chosen = tried[-1] if fitting is not None else None
    return GuardResult(
        name=subject.name,
        prediction=fitting or prediction,
        room=there,
        fits=fitting is not None,
        margin=margin,
        fallback=chosen,
        tried=tuple(tried),
        settings=subject.apply(chosen.changes if chosen is not None else {}),
    )


def tell(result: GuardResult, on_overflow: OnOverflow, *, quiet: bool = False) -> None:
    """Say what was found; the one place where an overflow becomes an error, a warning or a call."""
    if result.fits is False:
        text = in_the_users_language(overflow_text(result))
        if on_overflow == "raise":
            raise DoesNotFit(text, result)
        if on_overflow == "warn":
            warnings.warn(text, GuardWarning, stacklevel=3)
        elif callable(on_overflow):
            on_overflow(result)
        return
    if result.fits is None and result.room is not None:
        text = in_the_users_language(f"{sentence(result)}; it is watched all the same")
        warnings.warn(text, GuardWarning, stacklevel=3)
    elif not quiet and (result.prediction is not None):
        print(in_the_users_language(sentence(result)), file=sys.stderr)


def start_watch(result: GuardResult, *, device: int | None, warn_above: float, report_dir: str | Path) -> Watch:
    from vramcast.features.guard.watch import Watch

    watch = Watch(prediction=result.prediction, device=device, warn_above=warn_above, report_dir=Path(report_dir))
    watch.start()
    return watch


def _check(on_overflow: OnOverflow, margin: float, steps: int, warn_above: float) -> None:
    if on_overflow not in ("raise", "warn") and not callable(on_overflow):
        raise UsageError(f"on_overflow: 'raise', 'warn' or a function, not {on_overflow!r}")
    if not 0 <= margin < 1:
        raise UsageError(f"margin: a share from 0 up to 1, e.g. 0.1, not {margin!r}")
    if not 0 < warn_above <= 1:
        raise UsageError(f"warn_above: a share of the card up to 1, e.g. 0.9, not {warn_above!r}")
    if steps < 1:
        raise UsageError(f"steps: at least 1 is needed, not {steps}")


def _is_trainer(what: Any) -> bool:
    """Whether it is a Trainer, without importing transformers: whoever has one has imported it."""
    return any(
        base.__name__ == "Trainer" and base.__module__.startswith("transformers.") for base in type(what).__mro__
    )


def _on_virtual_card() -> bool:
    context = sys.modules.get("vramcast.card.device.context")
    return context is not None and context.active_card() is not None
