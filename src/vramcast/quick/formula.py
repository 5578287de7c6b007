"""One layer = batch × sequence × height × width × hidden × bytes; all = × layers; safe below a share of the card.

It counts one tensor a layer and nothing else: no attention, no gradients, no weights, no allocator. What is left of
the card above the threshold is for those. `vramcast predict` counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from vramcast.base.errors import UsageError

THRESHOLD = 0.7
"""Share of the card that activations may take; the rest is for weights, gradients, optimizer state."""

DTYPE_BYTES = {
    "fp64": 8, "float64": 8, "fp32": 4, "float32": 4, "tf32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2,
    "half": 2, "fp8": 1, "int8": 1,
}  # fmt: skip

_LARGEST = 10_000_000
"""The largest value of one size; above it is a typo."""
_SIZES = ("batch", "sequence", "height", "width", "hidden_dim", "layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickQuestion:
    batch: int
    hidden_dim: int
    layers: int
    height: int = 1
    width: int = 1
    sequence: int = 1
    element_bytes: int = 4
    threshold: float = THRESHOLD
    card_bytes: int

    def __post_init__(self) -> None:
        for name in _SIZES:
            size = getattr(self, name)
            if not 1 <= size <= _LARGEST:
                raise UsageError(f"{name}: a whole number from 1 to {_LARGEST:,} is needed, not {size:,}")
        if self.element_bytes not in (1, 2, 4, 8):
            raise UsageError(f"bytes: a number takes 1, 2, 4 or 8 bytes, not {self.element_bytes}")
        if not 0 < self.threshold <= 1:
            raise UsageError(f"threshold: a share above 0 and up to 1 is needed, e.g. 0.7, not {self.threshold:g}")
        if self.card_bytes <= 0:
            raise UsageError("gpu_memory: the card must have more than nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickAnswer:
    question: QuickQuestion
    layer_bytes: int
    total_bytes: int
    allowed_bytes: int
    """The threshold's share of the card."""
    largest_batch: int
    """That the formula calls safe; 0 when not even one is."""
    largest_side: int
    """Side of the largest square image with the same batch; 0 when none fits, or when there is no image."""

    @property
    def kept_batch(self) -> int:
        """The largest that is safe and makes the whole batch in equal passes; 0 when not even one is."""
        batches = range(min(self.largest_batch, self.question.batch), 0, -1)
        return next((batch for batch in batches if self.question.batch % batch == 0), 0)

    @property
    def safe(self) -> bool:
        return self.total_bytes < self.allowed_bytes

    @property
    def headroom_bytes(self) -> int:
        """Left of what is allowed; below zero, what is missing."""
        return self.allowed_bytes - self.total_bytes


def answer(question: QuickQuestion) -> QuickAnswer:
    q = question
    pixel_bytes = q.sequence * q.hidden_dim * q.element_bytes
    sample_bytes = pixel_bytes * q.height * q.width
    allowed_bytes = int(q.card_bytes * q.threshold)
    pixels = (allowed_bytes - 1) // (pixel_bytes * q.batch * q.layers)
    return QuickAnswer(
        question=q,
        layer_bytes=q.batch * sample_bytes,
        total_bytes=q.batch * sample_bytes * q.layers,
        allowed_bytes=allowed_bytes,
        largest_batch=(allowed_bytes - 1) // (sample_bytes * q.layers),
        largest_side=isqrt(pixels) if q.height * q.width > 1 else 0,
    )
