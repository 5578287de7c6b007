"""A convolution as cuDNN sees it, and what it knows of the card."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SM_COUNT_UNKNOWN, L2_BYTES_UNKNOWN, MEMORY_BYTES_UNKNOWN = 80, 32 << 20, 24 << 30
ITEM_BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Card:
    """What the choice of a plan depends on."""

    compute_capability: tuple[int, int]
    sm_count: int = SM_COUNT_UNKNOWN
    l2_bytes: int = L2_BYTES_UNKNOWN
    memory_bytes: int = MEMORY_BYTES_UNKNOWN


@dataclass(frozen=True, slots=True)
class ConvolutionProblem:
    """One cuDNN operation: `x` and `y` are the input and the output of the forward convolution.

    `operation` is forward, backward_data or backward_weight. Each shape has a batch and a channel dimension before
    two or three spatial ones.
    """

    operation: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str
    channels_last: bool
    tf32: bool
    deterministic: bool = False

    @property
    def groups(self) -> int:
        return self.x[1] // self.w[1]

    @property
    def is_pointwise(self) -> bool:
        """A matrix product: one tap, stride one, no padding."""
        return max(self.w[2:]) == 1 and max(self.stride) == 1 and max(self.padding) == 0

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def tensor_bytes(self) -> int:
        return self.item_bytes * (math.prod(self.x) + math.prod(self.w) + math.prod(self.y))


def as_cudnn(
    direction: str,
    x: Sequence[int],
    w: Sequence[int],
    y: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    dtype: str,
    channels_last: bool,
    tf32: bool,
    deterministic: bool = False,
) -> ConvolutionProblem:
    """What PyTorch asks cuDNN for when a module goes in `direction`; x, w, y are the module's tensors.

    One-dimensional convolutions get a first spatial dimension of size one (view1d_as_2d). A transposed convolution
    is the backward-data of the convolution with the same weight, and the other way round.
    """
    x, w, y = tuple(x), tuple(w), tuple(y)
    spatial = len(x) - 2
    steps = [tuple(value) * spatial if len(value) == 1 else tuple(value) for value in (padding, stride, dilation)]
    if spatial == 1:
        x, w, y = ((*shape[:2], 1, shape[2]) for shape in (x, w, y))
        steps = [(neutral, *value) for neutral, value in zip((0, 1, 1), steps, strict=True)]
    if transposed:
        x, y = y, x
        direction = {"forward": "backward_data", "backward_data": "forward"}.get(direction, direction)
    return ConvolutionProblem(
        direction, x, w, y, steps[0], steps[1], steps[2], dtype, channels_last, tf32, deterministic
    )
