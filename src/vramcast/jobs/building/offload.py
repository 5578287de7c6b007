"""Components that lie in the computer's memory between their calls, moved as diffusers and accelerate move them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vramcast.jobs.building.libraries import library
from vramcast.jobs.schema import Job

_CARD = torch.device("cuda", 0)


class Offloaded:
    """`calling` around each call, `end_of_pass` after the last one."""

    def __init__(self, job: Job, modules: Mapping[str, nn.Module], called: Sequence[str]) -> None:
        """`called`: the components in the order in which a step calls them."""
        self._moved: dict[str, nn.Module] = {}
        self._hooks: dict[str, Any] = {}
        last: Any = None
        prepared: set[int] = set()
        for name in dict.fromkeys(called):
            module, how = modules[name], job.offload_of(name)
            if how == "none" or (how == "sequential" and id(module) in prepared):
                continue
            prepared.add(id(module))
            if how == "sequential":
                # As diffusers' enable_sequential_cpu_offload has it.
                buffers = len(module._parameters) > 0
                library("accelerate", f"components.{name}.offload").cpu_offload(module, _CARD, offload_buffers=buffers)
            elif job.task == "training":
                self._moved[name] = module
            else:
                accelerate = library("accelerate", f"components.{name}.offload")
                _, last = accelerate.cpu_offload_with_hook(module, _CARD, prev_module_hook=last)
                self._hooks[name] = last

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        moved, hook = self._moved.get(name), self._hooks.get(name)
        if moved is not None:
            moved.to(_CARD)
        if hook is not None:
            hook.hook.pre_forward(hook.model)  # also for its other methods (diffusers' apply_forward_hook)
        try:
            yield
        finally:
            if moved is not None:
                moved.to("cpu")

    def end_of_pass(self) -> None:
        """Do what a pipeline's maybe_free_model_hooks does."""
        for hook in self._hooks.values():
            hook.offload()
        if self._hooks:
            torch.cuda.empty_cache()
