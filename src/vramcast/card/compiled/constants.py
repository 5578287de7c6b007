"""Constants that Inductor computes while it compiles: on the host, since the card computes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.card.dispatch.storages import is_virtual_gpu, known_values

if TYPE_CHECKING:
    from vramcast.card.device.patches import Patches

_CPU = torch.device("cpu")


def install(put: Patches) -> None:
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder as Folder

    put.set(Folder, "__init__", _computed_on_host(Folder.__init__))
    put.set(Folder, "_deduce_value", _of_known_constants(_computed_on_host(Folder._deduce_value)))


class _OnHost(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [_moved(value) for value in args]
        return func(*args, **{name: _moved(value) for name, value in (kwargs or {}).items()})


def _moved(value: Any) -> Any:
    return _CPU if isinstance(value, torch.device) and value.type == "cuda" else value


def _computed_on_host(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _OnHost():
            return original(*args, **kwargs)

    return call


def _of_known_constants(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _deduce_value(folder: Any, node: Any) -> Any:
        value = original(folder, node)
        if isinstance(value, torch.Tensor) and is_virtual_gpu(value):
            content = known_values(value)
            return folder.unknown_value if content is None else content
        return value

    return _deduce_value
