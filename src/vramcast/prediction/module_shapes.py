"""The size of the features that each module takes and returns, noted during one step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class OutputShapes:
    """Hooks that keep shapes and no tensor: what they saw must be freed when the run frees it."""

    def __init__(self) -> None:
        self.outputs: dict[str, tuple[int, ...]] = {}
        self.inputs: dict[str, tuple[tuple[int, ...], ...]] = {}
        """Shapes of the tensors that a module was called with."""
        self._handles: list[Any] = []

    def watch(self, modules: Mapping[str, nn.Module]) -> None:
        for component, module in modules.items():
            for path, child in module.named_modules():
                name = f"{component}.{path}" if path else component
                self._handles.append(child.register_forward_hook(self._note(name), with_kwargs=True))

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _note(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if name not in self.inputs:
                given = (*args, *kwargs.values())
                self.inputs[name] = tuple(tuple(value.shape) for value in given if isinstance(value, torch.Tensor))
            tensor = output
            while isinstance(tensor, (list, tuple)) and tensor:
                tensor = tensor[0]
            if name not in self.outputs and isinstance(tensor, torch.Tensor):
                self.outputs[name] = tuple(tensor.shape)

        return hook
