"""One way to turn one knob: what it changes in the job, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from vramcast.gpus import GpuSpec
from vramcast.jobs.schema import Job

SAFE = 0
"""The same training, to rounding."""
USUAL = 1
"""Other arithmetic that most people train with and do not notice."""
CHANGES_TRAINING = 2
"""The result may differ: learning rate and quality are to be looked at again."""
MORE_CARDS = 3
"""The same training on hardware that may not be there."""
LAST_RESORT = 4
"""Something else is trained."""

RISKS = ("same training", "usual arithmetic", "training changes", "needs more cards", "another training")
"""In words, by number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    knob: str
    text: str
    """What is done, in a few words."""
    changes: Mapping[str, Any]
    """Dotted key of the job → value."""
    cost: str
    """In time, accuracy or risk, in words."""
    risk: int = SAFE
    time: float = 1.0
    """Time of a sample, beside the job as it is; rules of thumb of docs/advise.md, until there is a trace."""
    by_rule: bool = False
    """What it costs does not show in the ops of a trace: `time` is multiplied with what is predicted of them."""
    sample_share: float = 1.0
    """How much of a sample of the job one of its samples is."""
    traced: bool = False
    """Another run: it needs a trace. What does not is worked out from the trace of the others."""
    state_ratio: float = 1.0
    """Optimizer state that is left, for the estimate."""
    activations_ratio: float = 1.0
    """Activations that are left, for the estimate."""
    thinned: tuple[int, float] | None = None
    """Of blocks whose last dimension is so wide, such a share is left, for the estimate."""
    guess: float = 1.0
    """Share of the memory that is thought to be left, before there is a trace to say so."""
    in_config: bool = True
    """The user's own files can say it, or an environment variable; else code must be changed."""
    excludes: tuple[str, ...] = ()
    """Knobs that cannot be turned beside it, or "knob: text" of single options."""


def go_together(options: Iterable[Option]) -> bool:
    """None of them excludes another."""
    options = tuple(options)
    names = {name for one in options for name in (one.knob, f"{one.knob}: {one.text}")}
    return not any(name in names for one in options for name in one.excludes)


class Knob(Protocol):
    """A module of knobs/."""

    NAME: str
    """What `--keep` calls it."""

    @staticmethod
    def options(job: Job, gpu: GpuSpec) -> list[Option]:
        """The ways to turn it that suit this job and card; none where it does not apply."""
        ...
