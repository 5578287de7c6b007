"""What a reference of a job stands for while it runs, and the tensor that a model's output is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from vramcast.errors import UsageError

CHANNELS_LAST = "channels_last()"
"""The one conversion that is no method of a tensor."""


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """In that layout; as it is where it has neither two nor three dimensions of space."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.to(memory_format=layouts[tensor.dim()]) if tensor.dim() in layouts else tensor


def look_up(reference: str, values: Mapping[str, Any], key: str) -> Any:
    """ "text.last_hidden_state", "model.0", "vae.latent_dist.sample()", "images.channels_last()"."""
    name, *path = reference.split(".")
    if name not in values:
        raise UsageError(f"{key}: there is no input or component called {name!r} (there is {', '.join(values)})")
    value = values[name]
    for part in path:
        try:
            if part == CHANNELS_LAST and isinstance(value, torch.Tensor):
                value = channels_last(value)
            elif part.endswith("()"):
                value = getattr(value, part[:-2])()
            elif part.isdigit():
                value = value[int(part)]
            else:
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        except (AttributeError, KeyError, IndexError, TypeError):
            raise UsageError(f"{key}: {reference!r}: {_kind(value)} has no {part!r}{_what_it_has(value)}") from None
    return value


def first_tensor(output: Any, key: str) -> torch.Tensor:
    """The prediction in whatever a model returns: logits, sample, out, or the first tensor that is no loss."""
    found = next(_tensors(output), None)
    if found is None:
        raise UsageError(f"{key}: the model returns {_kind(output)}, in which there is no tensor to compare")
    return found


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


def _what_it_has(value: Any) -> str:
    return f" (it has {', '.join(map(str, value))})" if isinstance(value, Mapping) and value else ""
