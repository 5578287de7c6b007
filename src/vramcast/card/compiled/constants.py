"""Constants that the compilers compute while they trace and lower: on the host, since the card computes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental import proxy_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.card.dispatch.storages import is_virtual_gpu, known_values

if TYPE_CHECKING:
    from vramcast.card.compiled.visibility import Visibility
    from vramcast.card.device.patches import Patches

_CPU = torch.device("cpu")


def install(put: Patches, visibility: Visibility) -> None:
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder as Folder
    from torch._inductor.graph import GraphLowering

    put.set(Folder, "__init__", _computed_on_host(Folder.__init__))
    put.set(Folder, "_deduce_value", _of_known_constants(_computed_on_host(Folder._deduce_value)))
    put.set(GraphLowering, "constant_name", _on_the_card(GraphLowering.constant_name, visibility))
    # Tensors of one element that are made from numbers, for whoever asks for their value while it is traced.
    put.set(proxy_tensor, "unset_fake_temporarily", _without_fakes_on_host(unset_fake_temporarily))


def _without_fakes_on_host(original: Callable[[], AbstractContextManager[Any]]) -> Callable[[], Any]:
    @contextmanager
    def unset_fake_temporarily() -> Iterator[None]:
        with original(), _OnHost():
            yield

    return unset_fake_temporarily


def _on_the_card(original: Callable[..., str], visibility: Visibility) -> Callable[..., str]:
    """A constant of a graph that its kernels read on the card: it is copied there when the graph is compiled, and stays
    as long as the graph does."""

    @functools.wraps(original)
    def constant_name(graph: Any, name: str, device_override: torch.device | None) -> str:
        constant = graph.constants[name]
        if device_override is None or device_override.type != "cuda" or is_virtual_gpu(constant):
            return original(graph, name, None if is_virtual_gpu(constant) else device_override)
        copied = f"{name}_{device_override.type}{device_override.index or 0}"
        if copied not in graph.constants:
            with unset_fake_temporarily(), visibility.show():
                graph.constants[copied] = constant.to(device_override)
                graph.constant_reprs[copied] = repr(graph.constants[copied].shape)
            graph.allocated_constant_name[copied] = copied
        return copied

    return constant_name


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
