"""Activation checkpointing: the model's own switch where it has one, or module by module."""

from __future__ import annotations

import functools
from typing import Any

import torch.utils.checkpoint
from torch import nn

from vramcast.base.errors import UsageError
from vramcast.jobs.patterns import matches
from vramcast.jobs.schema import Checkpointing

_SHORTEST_STACK = 2


def enable_checkpointing(key: str, module: nn.Module, wish: Checkpointing) -> None:
    if wish.scope == "modules":
        _chosen(key, module, wish)
    elif wish.scope == "all":
        _everything(key, module, wish.reentrant)


def _everything(key: str, module: Any, reentrant: bool) -> None:
    try:
        if hasattr(module, "gradient_checkpointing_enable"):  # transformers
            module.gradient_checkpointing_enable({"use_reentrant": reentrant})
            return
        if hasattr(module, "enable_gradient_checkpointing"):  # diffusers
            module.enable_gradient_checkpointing()
            return
    except ValueError as error:
        raise UsageError(f"{key}: checkpointing: {error}") from None
    if hasattr(module, "set_grad_checkpointing"):  # timm
        module.set_grad_checkpointing(True)
        return
    blocks = longest_stack(module)
    if not blocks:
        raise UsageError(
            f"{key}: checkpointing: all: {type(module).__name__} has neither a switch for it nor a stack of equal "
            'blocks; say which modules: checkpointing: {scope: modules, modules: ["blocks.*"]}'
        )
    for block in blocks:
        checkpoint_module(block, reentrant)


def _chosen(key: str, module: nn.Module, wish: Checkpointing) -> None:
    names = [name for name, _ in module.named_modules() if name]
    for pattern in (*wish.modules, *wish.skip):
        if not any(matches(name, [pattern]) for name in names):
            some = ", ".join(names[:5])
            raise UsageError(f"{key}: checkpointing: no module's name matches {pattern!r}; names are like {some}")
    config: Any = getattr(module, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False  # transformers' own switch does so too: keys and values would be kept twice
    taken: list[str] = []
    for name, child in module.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in taken)
        if name and not inside and matches(name, wish.modules) and not matches(name, wish.skip):
            taken.append(name)
            checkpoint_module(child, wish.reentrant)


def longest_stack(module: nn.Module) -> list[nn.Module]:
    """The longest list of modules of one class: the blocks of most networks."""
    stacks = [list(m.children()) for m in module.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    equal = [stack for stack in stacks if len(stack) >= _SHORTEST_STACK and len({type(m) for m in stack}) == 1]
    return max(equal, key=len, default=[])


def checkpoint_module(module: nn.Module, reentrant: bool) -> None:
    module.forward = functools.partial(torch.utils.checkpoint.checkpoint, module.forward, use_reentrant=reentrant)
