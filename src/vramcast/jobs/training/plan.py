"""What a step does, with everything that the job left to what is usual filled in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from vramcast.base.errors import UsageError
from vramcast.jobs.building.allowed import check_options
from vramcast.jobs.building.built import Built
from vramcast.jobs.building.usual_inputs import Usual, usual_inputs
from vramcast.jobs.expressions import check
from vramcast.jobs.fields import COMMON_SIZES
from vramcast.jobs.references import nearest, root
from vramcast.jobs.schema import Component, Diffusion, Input, Job, Loss
from vramcast.jobs.training.losses import TARGETS

_HALVES = ("bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One component is called. An argument without a name is positional."""

    component: str
    arguments: tuple[tuple[str, str], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    method: str | None = None
    no_grad: bool = False
    autocast: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    model: str
    """The component whose output the loss is about."""
    inputs: Mapping[str, Input]
    calls: tuple[Call, ...]
    loss: tuple[Loss, ...]
    """Empty: decided when the first output is there."""
    diffusion: Diffusion | None
    sizes: Mapping[str, int]
    assumed_sizes: Mapping[str, int]
    """Sizes that the job did not give."""


def make_plan(job: Job, built: Mapping[str, Built]) -> Plan:
    model = main_component(job)
    inputs = dict(job.inputs)
    sizes = job.effective_sizes
    assumed: dict[str, int] = {}
    loss, diffusion = tuple(job.loss), job.diffusion
    calls: list[Call] = []
    for name, component in job.components.items():
        if not component.call or component.effective_role == "loss-network":
            continue
        if built[name].family != "factory":
            target = built[name].model
            check_options(
                f"components.{name}.options", component.options,
                getattr(target, component.method, None) if component.method else target.forward,
            )  # fmt: skip
        if component.inputs is not None:
            arguments = _said(component)
        elif job.inputs:
            arguments = _by_signature(built[name].model, component, job)
        else:
            usual = usual_inputs(name, built[name])
            if job.task == "inference":
                usual = usual.without_targets()
            prefix = "" if name == model else f"{name}_"
            inputs |= _usual_inputs(usual, prefix, component, job)
            arguments = tuple((argument, _prefixed(ref, prefix, usual)) for argument, ref in usual.call.items())
            assumed |= {key: value for key, value in usual.sizes.items() if key not in sizes}
            component = component.model_copy(update={"options": {**usual.options, **component.options}})
            if name == model:
                loss = loss or usual.loss
                diffusion = diffusion or usual.diffusion
        calls.append(
            Call(
                component=name,
                arguments=arguments,
                options=component.options,
                method=component.method,
                no_grad=component.runs_without_grad,
                autocast=component.autocast,
            )
        )
    if not calls:
        raise UsageError("components: none of them is called in the step; leave call: false out for one")
    used = {key: value for key, value in assumed.items() if _uses(inputs, key)}
    _check_sizes(job, inputs, {**assumed, **sizes})
    return Plan(
        model=model, inputs=inputs, calls=tuple(calls), loss=loss, diffusion=diffusion, sizes={**assumed, **sizes},
        assumed_sizes=used,
    )  # fmt: skip


def main_component(job: Job) -> str:
    """The last one that is trained and called; for inference, the last one that is called."""
    called = [
        name
        for name, component in job.components.items()
        if component.call and component.effective_role != "loss-network"
    ]
    trained = [name for name in called if job.components[name].is_trained]
    if job.task == "training" and not trained:
        raise UsageError("components: none of them is trained and called; write mode: trained, or task: inference")
    models = [name for name in trained if job.components[name].effective_role == "model"]
    if not called:
        raise UsageError("components: none of them is called in the step; leave call: false out for one")
    return (models or trained or called)[-1]


def _said(component: Component) -> tuple[tuple[str, str], ...]:
    given = component.inputs
    if isinstance(given, dict):
        return tuple(given.items())
    return tuple(("", reference) for reference in given or ())


def _by_signature(module: nn.Module, component: Component, job: Job) -> tuple[tuple[str, str], ...]:
    """The inputs that its forward takes by name, or all but the targets in order."""
    call = getattr(module, component.method) if component.method else module.forward
    try:
        taken = set(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        taken = set()
    named = tuple((name, name) for name in job.inputs if name in taken)
    if named:
        return named
    compared = {root(term.target) for term in job.loss if term.target is not None} | set(TARGETS)
    return tuple(("", name) for name in job.inputs if name not in compared)


def _usual_inputs(usual: Usual, prefix: str, component: Component, job: Job) -> dict[str, Input]:
    """The usual inputs; without autocast, those of a half-precision model are in its own dtype."""
    dtype = component.dtype or job.precision.weights_dtype
    half = dtype in _HALVES and job.precision.autocast_dtype == "none"
    changed = {}
    for name, tensor in usual.inputs.items():
        cast = half and tensor.dtype == "fp32" and tensor.made_on == "cpu"
        changed[prefix + name] = tensor.model_copy(update={"dtype": dtype}) if cast else tensor
    return changed


def _prefixed(reference: str, prefix: str, usual: Usual) -> str:
    return prefix + reference if root(reference) in usual.inputs else reference


def _check_sizes(job: Job, inputs: Mapping[str, Input], sizes: Mapping[str, int]) -> None:
    """A size that nothing uses is mostly a misspelt one; the common ones may stand in any job."""
    for name in job.sizes:
        if name not in COMMON_SIZES and not _uses(inputs, name):
            used = [known for known in sizes if _uses(inputs, known)]
            raise UsageError(f"sizes.{name}: no input's shape uses it{nearest(name, used)}")


def _uses(inputs: Mapping[str, Input], size: str) -> bool:
    expressions = (dimension for tensor in inputs.values() for dimension in (*tensor.shape, tensor.below))
    return any(isinstance(text, str) and size in check(text) for text in expressions)
