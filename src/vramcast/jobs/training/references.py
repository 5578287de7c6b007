"""What a reference of a job stands for while it runs, and the tensor that a model's output is about.

A reference takes fields of what models return, by name or by number, and a few conversions that are listed here. It
never asks an object for an attribute that is not one of its fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from vramcast.base.errors import UsageError
from vramcast.jobs.references import CHANNELS_LAST, CONVERSIONS


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in channels-last layout; unchanged where it has neither two nor three spatial dimensions."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.to(memory_format=layouts[tensor.dim()]) if tensor.dim() in layouts else tensor


_OF_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    CHANNELS_LAST: channels_last,
    "contiguous()": torch.Tensor.contiguous,
    "detach()": torch.Tensor.detach,
    "float()": torch.Tensor.float,
    "half()": torch.Tensor.half,
    "bfloat16()": torch.Tensor.bfloat16,
    "mean()": torch.Tensor.mean,
    "sum()": torch.Tensor.sum,
}
_OF_DISTRIBUTIONS = ("sample()", "mode()", "kl()")
"""Methods of what an autoencoder of diffusers returns for its latents."""
assert {*_OF_TENSORS, *_OF_DISTRIBUTIONS} == set(CONVERSIONS)


def look_up(reference: str, values: Mapping[str, Any], key: str) -> Any:
    """ "text.last_hidden_state", "model.0", "vae.latent_dist.sample()", "images.channels_last()"."""
    name, *path = reference.split(".")
    if name not in values:
        raise UsageError(f"{key}: there is no input or component called {name!r} (there is {', '.join(values)})")
    value = values[name]
    for part in path:
        try:
            value = _converted(value, part) if part.endswith("()") else _field(value, part)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError):  # of torch: a huge index
            raise UsageError(f"{key}: {reference!r}: {_kind(value)} has no {part!r}{_known_keys(value)}") from None
    return value


def _field(value: Any, name: str) -> Any:
    """KeyError, IndexError or TypeError where it has none of that name or number."""
    if isinstance(value, Mapping):
        return value[int(name) if name.isdigit() and name not in value else name]
    if name.isdigit():
        if isinstance(value, (tuple, list, torch.Tensor)):
            return value[int(name)]
        raise TypeError(name)
    if isinstance(value, tuple) and name in getattr(type(value), "_fields", ()):
        return value[type(value)._fields.index(name)]  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(value) and name in {field.name for field in dataclasses.fields(value)}:
        return getattr(value, name)
    if _is_distribution(value) and isinstance(vars(value).get(name), torch.Tensor):
        return vars(value)[name]
    raise KeyError(name)


def _converted(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor) and name in _OF_TENSORS:
        return _OF_TENSORS[name](value)
    if name in _OF_DISTRIBUTIONS and _is_distribution(value):
        return getattr(value, name[:-2])()
    raise KeyError(name)


def _is_distribution(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.startswith("diffusers.") and kind.__name__.endswith("Distribution")


def first_tensor(output: Any, key: str) -> torch.Tensor:
    """The prediction in whatever a model returns: logits, sample, out, or the first tensor that is no loss."""
    tensor = next(_tensors(output), None)
    if tensor is None:
        raise UsageError(f"{key}: the model returns {_kind(output)}, in which there is no tensor to compare")
    return tensor


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for name, value in output.items():
            if name != "loss":
                yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)


def _kind(value: Any) -> str:
    return type(value).__name__


def _known_keys(value: Any) -> str:
    return f" (it has {', '.join(map(str, value))})" if isinstance(value, Mapping) and value else ""
