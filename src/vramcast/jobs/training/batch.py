"""Batches: tensors on the CPU that are moved in every step, and those that are made on the card."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from vramcast.base.errors import UsageError
from vramcast.jobs.expressions import evaluate
from vramcast.jobs.schema import Input
from vramcast.jobs.training.dtypes import DTYPES
from vramcast.jobs.training.references import channels_last

Batch = dict[str, torch.Tensor]

_LARGEST_BYTES = 2**42
"""The largest input; above this it is a typo."""

_REAL_BYTES = 2**24
"""CPU tensors up to this size have data of their own; larger ones repeat one row, or one number, and take no memory."""


_PADDED_PART = 8
"""One in this many places of a padded row is padding."""


class Data:
    """Says once what a batch is; `to_card` gives the next one, as a data loader and `.to("cuda")` would."""

    def __init__(self, inputs: Mapping[str, Input], sizes: Mapping[str, int]) -> None:
        self._inputs = dict(inputs)
        self.shapes = {name: shape_of(name, spec, sizes) for name, spec in inputs.items()}
        self._below = {
            name: evaluate(spec.below, sizes, f"inputs.{name}.below") if spec.below is not None else 2
            for name, spec in inputs.items()
        }
        self._leading = {name: _leading(name, spec, self.shapes[name], sizes) for name, spec in inputs.items()}
        self._host = {name: self._make(name, "cpu") for name, spec in inputs.items() if spec.made_on == "cpu"}

    def to_card(self) -> Batch:
        return {name: self._next(name) for name in self._inputs}

    def _next(self, name: str) -> torch.Tensor:
        host = self._host.get(name)
        if host is None:
            return self._make(name, "cuda")
        return host.to("cuda", non_blocking=self._inputs[name].pinned)

    def _make(self, name: str, device: str) -> torch.Tensor:
        spec, shape = self._inputs[name], self.shapes[name]
        dtype = DTYPES[spec.dtype]
        if device == "cpu" and math.prod(shape) * dtype.itemsize > _REAL_BYTES:
            row = self._filled(spec, self._repeated(shape, dtype), dtype, self._below[name], device)
            return self._begun(name, row).expand(shape)
        tensor = self._begun(name, self._filled(spec, shape, dtype, self._below[name], device))
        return channels_last(tensor) if spec.channels_last else tensor

    def _begun(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if self._leading[name]:
            tensor[..., : self._leading[name]] = self._inputs[name].leading_value
        return tensor

    @staticmethod
    def _repeated(shape: list[int], dtype: torch.dtype) -> list[int]:
        """What of a large tensor is made: one row, which stands for all, or one number."""
        row = [1, *shape[1:]]
        is_small = not dtype.is_floating_point and math.prod(row) * dtype.itemsize <= _REAL_BYTES
        return row if is_small else [1] * len(shape)

    @staticmethod
    def _filled(spec: Input, shape: list[int], dtype: torch.dtype, below: int, device: str) -> torch.Tensor:
        if spec.fill != "random":
            tensor = (torch.zeros if spec.fill == "zeros" else torch.ones)(shape, dtype=dtype, device=device)
            if spec.fill == "padded" and shape:
                tensor[..., shape[-1] - max(1, shape[-1] // _PADDED_PART) :] = 0
            return tensor
        if dtype.is_floating_point:
            return torch.randn(shape, dtype=dtype, device=device)
        if dtype is torch.bool:
            return torch.ones(shape, dtype=dtype, device=device)
        return torch.randint(spec.at_least, max(spec.at_least + 1, below), shape, dtype=dtype, device=device)


def _leading(name: str, spec: Input, shape: list[int], sizes: Mapping[str, int]) -> int:
    """How many places at the beginning of each row hold the same."""
    if spec.leading is None:
        return 0
    count = evaluate(spec.leading, sizes, f"inputs.{name}.leading")
    length = shape[-1] if shape else 0
    if not 0 <= count <= length:
        raise UsageError(f"inputs.{name}.leading: {count:,} places (of an image?) do not fit a row of {length:,}")
    return count


def shape_of(name: str, spec: Input, sizes: Mapping[str, int]) -> list[int]:
    shape = [evaluate(dimension, sizes, f"inputs.{name}.shape") for dimension in spec.shape]
    size_bytes = math.prod(shape) * DTYPES[spec.dtype].itemsize
    if size_bytes > _LARGEST_BYTES:
        dimensions = " × ".join(str(dimension) for dimension in shape)
        raise UsageError(
            f"inputs.{name}: a tensor of {dimensions} takes {size_bytes / 2**40:,.0f} TiB; check the sizes"
        )
    return shape
