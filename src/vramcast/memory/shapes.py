"""The shape of a tensor as a trace writes it, "float32[8, 1024, 768]", taken apart again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

_TEXT = re.compile(r"(\w+)\[([\d, ]*)\]")
_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_ITEM_BYTES = {"bool": 1, "bfloat16": 2, "half": 2, "complex32": 4, "complex64": 8, "complex128": 16}
_BITS = re.compile(r"(?:u?int|float)(\d+)")


@dataclass(frozen=True, slots=True)
class Shape:
    dtype: str
    """fp32, bf16, int64"""
    dimensions: tuple[int, ...]
    element_bytes: int

    @property
    def size_bytes(self) -> int:
        return prod(self.dimensions) * self.element_bytes

    @classmethod
    def parse(cls, text: str) -> Shape | None:
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        dimensions = tuple(int(part) for part in match[2].split(",") if part.strip())
        return cls(_SHORT.get(match[1], match[1]), dimensions, _element_bytes(match[1]))


def _element_bytes(dtype: str) -> int:
    bits = _BITS.match(dtype)
    return int(bits[1]) // 8 if bits else _ITEM_BYTES.get(dtype, 1)


def with_containers(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Lists of modules are not called themselves: each gets the shape of the last of its modules that was."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        outer = name.rpartition(".")[0]
        while outer and outer not in shapes:
            found[outer] = shape
            outer = outer.rpartition(".")[0]
    return {**found, **shapes}
