"""Names in a job that point at other parts of it: they must exist, and be there before they are used."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramcast.jobs.schema import Component, Job

DIFFUSION_NAMES = ("noise", "timesteps", "noisy", "objective")
"""What `diffusion` adds to the inputs."""


CHANNELS_LAST = "channels_last()"
CONVERSIONS = (
    CHANNELS_LAST, "contiguous()", "detach()", "float()", "half()", "bfloat16()", "mean()", "sum()",
    "sample()", "mode()", "kl()",
)  # fmt: skip
"""What a reference may make of what it has found: of a tensor, and of the distribution that an autoencoder returns."""


def root(reference: str) -> str:
    """The input or component that a reference begins with."""
    return reference.partition(".")[0]


_MOST_NAMED = 12


def nearest(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" or what there is."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f" (there is {', '.join(known[:_MOST_NAMED])}{more})" if known else ""


def says_all_inputs(job: Job) -> bool:
    """No component is left to the usual inputs of its kind."""
    return all(c.inputs is not None for c in job.components.values() if c.call and c.effective_role != "loss-network")


def check_references(job: Job) -> None:
    """ValueError that names the key of the first reference to something that is not there."""
    names = set(job.inputs)
    clash = names & set(job.components)
    if clash:
        raise ValueError(f"inputs.{min(clash)}: a component has the same name")
    if job.diffusion is not None:
        taken = [name for name in DIFFUSION_NAMES if name in names or name in job.components]
        if taken:
            raise ValueError(f"{taken[0]!r} is a name that `diffusion` makes; choose another for yours")
    before: dict[str, Component] = {}
    for name, component in job.components.items():
        _check_component(job, name, component, before)
        before[name] = component
    for i, term in enumerate(job.loss):
        if term.network is not None:
            _known(term.network, job.components, f"loss.{i}.network", "component")
        for field in ("prediction", "target"):
            reference = getattr(term, field)
            if reference is not None and says_all_inputs(job):
                _known(root(reference), _givers(job), f"loss.{i}.{field}", "input or component")
    for i, optimizer in enumerate(job.optimizer):
        for name in optimizer.components or ():
            _trained(job, name, f"optimizer.{i}.components")
    for name in (job.ema.components or ()) if job.ema else ():
        _trained(job, name, "ema.components")


def _check_component(job: Job, name: str, component: Component, before: dict[str, Component]) -> None:
    key = f"components.{name}"
    if component.copy_of is not None:
        _known(component.copy_of, before, f"{key}.copy_of", "component above it")
    if component.same_as is not None:
        _known(component.same_as, before, f"{key}.same_as", "component above it")
        if before[component.same_as].is_trained != component.is_trained:
            raise ValueError(
                f"{key}.mode: {component.same_as} has another: write mode: frozen for both, or for neither"
            )
    if component.call and component.device == "cpu":
        raise ValueError(f"{key}: it stays on the CPU, so the step cannot use it: write call: false")
    given = component.inputs
    if given is None or not says_all_inputs(job):
        return  # the usual inputs of a model are known only when it is built
    for reference in given.values() if isinstance(given, dict) else given:
        _known(root(reference), _givers(job, before), f"{key}.inputs", "input, or component above it")


def _givers(job: Job, components: dict[str, Component] | None = None) -> list[str]:
    derived = DIFFUSION_NAMES if job.diffusion is not None else ()
    return [*job.inputs, *derived, *(job.components if components is None else components)]


def _known(name: str, known: Iterable[str], key: str, what: str) -> None:
    known = list(known)
    if name not in known:
        raise ValueError(f"{key}: there is no {what} called {name!r}{nearest(name, known)}")


def _trained(job: Job, name: str, key: str) -> None:
    _known(name, job.components, key, "component")
    if not job.components[name].is_trained:
        raise ValueError(f"{key}: {name!r} is frozen, so there is nothing to update")
