"""An operator's arguments, read back from the text a trace or a measurement keeps of them.

The text is that of `measure.op_record.describe_arguments`: `f32(8,128), bf16(4,4){1,4}, [1, 2], dtype=float32`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

_ITEM_BYTES = {
    "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "b8": 1,
    "c64": 8, "c128": 16, "uint16": 2, "uint32": 4, "uint64": 8, "complex32": 4,
}  # fmt: skip
# dtype arguments carry torch's own names.
SHORT_NAMES = {
    "float32": "f32", "float": "f32", "float64": "f64", "double": "f64", "float16": "f16", "half": "f16",
    "bfloat16": "bf16", "int64": "i64", "long": "i64", "int32": "i32", "int": "i32", "int16": "i16", "int8": "i8",
    "uint8": "u8", "bool": "b8", "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_TENSOR = re.compile(r"(?:(\w+):)?([a-z]\w*)\(([\d,]*)\)(?:\{([\d,-]*)\}|([a-z]\w*))?$")
_NUMBER = re.compile(r"-?(\d+\.?\d*(e[+-]?\d+)?|inf|nan)$")


def item_bytes(dtype: str) -> int:
    """Bytes of one element; the 8-bit float formats, and whatever comes later, count as one byte."""
    return _ITEM_BYTES.get(SHORT_NAMES.get(dtype, dtype), 1)


@dataclass(frozen=True, slots=True)
class Tensor:
    """What the text says of a tensor. `strides` is None where it is contiguous."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    device: str = "cuda"
    sparse: bool = False
    numel: int = field(init=False)
    nbytes: int = field(init=False)
    """Bytes of the distinct elements: a dimension that is only expanded (stride 0) is read once."""

    def __post_init__(self) -> None:
        numel = prod(self.shape)
        distinct = numel
        if self.strides is not None and numel:
            distinct = prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride)
        object.__setattr__(self, "numel", numel)
        object.__setattr__(self, "nbytes", distinct * item_bytes(self.dtype))

    @property
    def item(self) -> int:
        return item_bytes(self.dtype)

    @property
    def dense(self) -> bool:
        """Every element of one stretch of memory, in whatever order."""
        if self.strides is None:
            return True
        expected = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size == 1:
                continue
            if stride != expected:
                return False
            expected *= size
        return True

    @property
    def order(self) -> tuple[int, ...]:
        """Its dimensions from the outermost in memory to the innermost, those of size 1 left out."""
        dims = [dim for dim, size in enumerate(self.shape) if size > 1]
        if self.strides is None:
            return tuple(dims)
        strides = self.strides
        return tuple(sorted(dims, key=lambda dim: (-strides[dim], dim)))


Value = Tensor | str | int | float | bool | None | list["Value"]


@dataclass(frozen=True, slots=True)
class Arguments:
    """Positional and named arguments."""

    args: tuple[Value, ...]
    kwargs: dict[str, Value]

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor, those in lists included, in order."""
        tensors: list[Tensor] = []
        for value in (*self.args, *self.kwargs.values()):
            _gather(value, tensors)
        return tensors

    def tensor(self, index: int) -> Tensor | None:
        value = self.args[index] if index < len(self.args) else None
        return value if isinstance(value, Tensor) else None

    def integers(self, index: int) -> list[int]:
        value = self.args[index] if index < len(self.args) else None
        return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []

    def tensor_list(self, index: int) -> list[Tensor]:
        value = self.args[index] if index < len(self.args) else None
        return [item for item in value if isinstance(item, Tensor)] if isinstance(value, list) else []


def _gather(value: Value, tensors: list[Tensor]) -> None:
    if isinstance(value, Tensor):
        tensors.append(value)
    elif isinstance(value, list):
        for item in value:
            _gather(item, tensors)


@lru_cache(maxsize=1 << 16)
def _atom(text: str) -> Value:
    """One argument that is not a list."""
    if text == "None":
        return None
    if text in ("True", "False"):
        return text == "True"
    if _NUMBER.match(text):
        return float(text) if not text.lstrip("-").isdigit() else int(text)
    match = _TENSOR.match(text)
    if match is None:
        return text
    device, dtype, shape, strides, layout = match.groups()
    sizes = tuple(map(int, shape.split(","))) if shape else ()
    steps = tuple(map(int, strides.split(","))) if strides else None
    return Tensor(dtype, sizes, steps, device or "cuda", layout is not None)


def parse_arguments(text: str) -> Arguments:
    """Read the text; anything it does not know stays a string."""
    args: list[Value] = []
    kwargs: dict[str, Value] = {}
    stack: list[list[Value]] = []
    name: str | None = None
    for raw in text.split(", ") if text else ():
        token = raw
        if not stack and "=" in token:
            head, _, rest = token.partition("=")
            if head.isidentifier():
                name, token = head, rest
        while token.startswith("["):
            stack.append([])
            token = token[1:]
        closing = len(token) - len(token.rstrip("]"))
        token = token[: len(token) - closing]
        if token or not (closing or stack):
            value = _atom(token)
            if stack:
                stack[-1].append(value)
            elif name is not None:
                kwargs[name], name = value, None
            else:
                args.append(value)
        for _ in range(min(closing, len(stack))):
            done = stack.pop()
            if stack:
                stack[-1].append(done)
            elif name is not None:
                kwargs[name], name = done, None
            else:
                args.append(done)
    return Arguments(tuple(args), kwargs)
