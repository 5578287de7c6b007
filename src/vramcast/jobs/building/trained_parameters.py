"""Which parameters of a component learn."""

from __future__ import annotations

from torch import nn

from vramcast.base.errors import UsageError
from vramcast.jobs.patterns import matches
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Component


def choose_trained(key: str, module: nn.Module, component: Component) -> None:
    if component.mode == "frozen":
        module.requires_grad_(False)
        return
    names = [name for name, _ in module.named_parameters()]
    for field, patterns in (("train_only", component.train_only), ("freeze", component.freeze)):
        for pattern in patterns:
            if not any(matches(name, [pattern]) for name in names):
                some = ", ".join(names[:3])
                parts = sorted({part for name in names for part in name.split(".") if not part.isdecimal()})
                guess = nearest(pattern.strip("*."), parts)
                guess = guess if guess.startswith(";") else f"; names are like {some}"
                raise UsageError(f"{key}.{field}: no parameter's name matches {pattern!r}{guess}")
    freeze = [] if component.freeze_steps else component.freeze
    for name, parameter in module.named_parameters():
        if (component.train_only and not matches(name, component.train_only)) or matches(name, freeze):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(f"{key}: nothing of it is trained; write mode: frozen, or change train_only and freeze")
