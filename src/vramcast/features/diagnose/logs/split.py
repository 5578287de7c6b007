"""The step in parts: what the log measured, what is left over, and what a prediction says of the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vramcast.features.diagnose.logs import sample as q
from vramcast.features.diagnose.logs.collect import Collected
from vramcast.features.diagnose.logs.readers import lightning_profile
from vramcast.features.diagnose.logs.result import MEASURED, PREDICTED, UNKNOWN, WORKED_OUT, Part, PredictedStep, Setup
from vramcast.features.diagnose.logs.stages import FITS, stage_tree

_EXPECTED = (q.DATA, q.FORWARD, q.BACKWARD, q.SYNC, q.OPTIMIZER)
"""What every step of training has; gradient sync only with several GPUs."""
_OVERLAP_FROM = 0.02
_OTHER_FROM = 0.005
GPU_IDLE = "GPU idle"
_ORDER = {phase: i for i, phase in enumerate(q.PHASES)}


@dataclass(frozen=True, slots=True)
class Split:
    parts: tuple[Part, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    def seconds(self, *phases: str) -> float | None:
        """The total of these phases, as far as they are known by themselves."""
        known = [part.seconds for part in self.parts if part.phase in phases and part.seconds is not None]
        return sum(known) if known else None

    @property
    def unrecorded(self) -> Part | None:
        return next((part for part in self.parts if part.covers), None)


def split(collected: Collected, step_seconds: float | None, setup: Setup, predicted: PredictedStep | None) -> Split:
    tree = stage_tree(collected.stages)
    parts = [*_logged(collected), *tree.parts]
    for phase in {part.phase for part in tree.parts if part.phase is not None}:
        # A stage timing says more than a single figure of the same phase.
        parts = [part for part in parts if part.phase != phase or part in tree.parts]
    parts = _stages_in_forward(parts)
    notes = list(tree.notes)
    recorded = {part.phase for part in parts}
    missing = tuple(phase for phase in _EXPECTED if phase not in recorded and not (phase == q.SYNC and setup.gpus == 1))
    filled = _fill(missing, predicted)
    parts += filled
    rest = None if step_seconds is None else step_seconds - sum(part.seconds or 0.0 for part in parts)
    unknown = tuple(phase for phase in missing if phase not in {part.phase for part in filled})
    if step_seconds is not None and rest is not None:
        if rest < -_OVERLAP_FROM * step_seconds:
            notes.append(
                f"the parts are {-rest:.2f} s longer than the step: they overlap, or the batch, the number of GPUs or "
                "whose throughput it is are not as assumed"
            )
        if unknown == (q.SYNC,) and setup.gpus is None:
            # It is not known that there are several GPUs.
            unknown = ()
        parts += _remainder(rest, step_seconds, unknown)
    elif unknown:
        parts.append(Part(name=", ".join(unknown), seconds=None, source=UNKNOWN, covers=unknown))
    parts.sort(key=lambda part: _ORDER.get(part.phase or (part.covers or ("",))[0], len(_ORDER)))
    return Split(tuple(parts), missing, tuple(notes))


def _stages_in_forward(parts: list[Part]) -> list[Part]:
    """Stages that were timed beside a logged forward pass lie inside it, as far as they fit."""
    forward = next((part for part in parts if part.phase == q.FORWARD and not part.children), None)
    if forward is None or forward.seconds is None:
        return parts
    inside, room = [], forward.seconds * FITS
    for part in parts:
        if part.phase is None and part.name != GPU_IDLE and part.seconds is not None and part.seconds <= room:
            inside.append(part)
            room -= part.seconds
    holder = replace(forward, children=tuple(inside))
    return [holder if part is forward else part for part in parts if part not in inside]


def _remainder(rest: float, step_seconds: float, unknown: tuple[str, ...]) -> list[Part]:
    if unknown:
        phase = unknown[0] if len(unknown) == 1 else None
        return [Part(name=", ".join(unknown), seconds=max(rest, 0.0), source=WORKED_OUT, phase=phase, covers=unknown)]
    if rest > _OTHER_FROM * step_seconds:
        return [Part(name="other", seconds=rest, source=WORKED_OUT)]
    return []


def _fill(missing: tuple[str, ...], predicted: PredictedStep | None) -> list[Part]:
    if predicted is None:
        return []
    wanted = [*missing, *((q.RECOMPUTATION,) if q.BACKWARD in missing else ())]
    made = [Part(name=phase, seconds=predicted.phases[phase], source=PREDICTED, phase=phase)
            for phase in wanted if phase in predicted.phases]  # fmt: skip
    modules = sorted(predicted.modules.items(), key=lambda item: -item[1])
    children = tuple(Part(name=name, seconds=seconds, source=PREDICTED) for name, seconds in modules[:8])
    return [replace(part, children=children) if part.phase == q.FORWARD else part for part in made]


def _logged(collected: Collected) -> list[Part]:
    """Phases under their usual names."""
    made = {}
    for quantity, series in collected.series.items():
        phase = q.phase_of_key(quantity)
        if phase is not None:
            made[phase] = series.median
    closure = collected.series.get(lightning_profile.OPTIMIZER_WITH_CLOSURE)
    if closure is not None and q.OPTIMIZER not in made:
        # Lightning runs forward and backward in a closure that the optimizer calls.
        inside = made.get(q.FORWARD, 0.0) + made.get(q.BACKWARD, 0.0)
        made[q.OPTIMIZER] = max(0.0, closure.median - inside)
    parts = [Part(name=phase, seconds=seconds, source=MEASURED, phase=phase) for phase, seconds in made.items()]
    idle = collected.series.get(q.GPU_IDLE_SECONDS)
    if idle is not None:
        # Loading that the GPU does not wait for costs no time.
        waited = min(made.get(q.DATA, 0.0), idle.median)
        parts = [replace(part, seconds=waited) if part.phase == q.DATA else part for part in parts]
        parts.append(Part(name=GPU_IDLE, seconds=idle.median - waited, source=MEASURED))
    return parts
