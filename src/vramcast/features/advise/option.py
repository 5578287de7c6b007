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
    """The cost in time, accuracy or risk, in words."""
    risk: int = SAFE
    time: float = 1.0
    """Time of a sample relative to the job as it is; a rule of thumb of docs/advise.md, until there is a trace."""
    by_rule: bool = False
    """What it costs does not show in the ops of a trace, so `time` is multiplied with the time predicted from them."""
    sample_share: float = 1.0
    """The share of a full sample that one of its samples is."""
    traced: bool = False
    """It changes the run, so it needs a trace. The others are worked out from existing traces."""
    state_ratio: float = 1.0
    """Share of the optimizer state that is left, for the estimate."""
    activations_ratio: float = 1.0
    """Share of the activations that is left, for the estimate."""
    thinned: tuple[int, float] | None = None
    """(width, share): tensors whose last dimension is this wide shrink to this share, for the estimate."""
    guess: float = 1.0
    """Share of the memory that is thought to be left, before there is a trace."""
    shards: int = 1
    """Over how many cards it spreads weights, gradients and optimizer state."""
    in_config: bool = True
    """The user's own files can say it, or an environment variable; else code must be changed."""
    excludes: tuple[str, ...] = ()
    """Knobs that cannot be turned together with it, or "knob: text" of single options."""


def go_together(options: Iterable[Option]) -> bool:
    """Whether none of them excludes another."""
    options = tuple(options)
    names = {name for option in options for name in (option.knob, f"{option.knob}: {option.text}")}
    return not any(name in names for option in options for name in option.excludes)


class Knob(Protocol):
    """A module of knobs/."""

    NAME: str
    """What `--keep` calls it."""

    @staticmethod
    def options(job: Job, gpu: GpuSpec) -> list[Option]:
        """The ways to turn it that suit this job and card; none where it does not apply."""
        ...
