"""What lies in safetensors files, from their headers alone: names, dtypes and shapes. No weights are read."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.access import check_file
from vramcast.base.errors import UsageError
from vramcast.base.input_files import open_input, parse_json

_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 25_000_000
"""The most that all files of a folder may have together; 200,000 tensors take about this much."""
_MOST_DIMENSIONS = 16
_LARGEST_DIMENSION = 2**48


@dataclass(frozen=True, slots=True)
class StoredWeights:
    count: int
    dtypes: tuple[str, ...]
    """As the files name them (F16, BF16), the most common first."""


def stored_weights(folder: Path) -> StoredWeights | None:
    """The weights in all safetensors files of a folder; None where there are none."""
    check_file(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    by_dtype: Counter[str] = Counter()
    left_bytes = _LARGEST_HEADER_BYTES
    for file in files:
        header = _header(file, left_bytes)
        left_bytes -= len(header)
        for dtype, shape in _tensors(header, file):
            by_dtype[dtype] += math.prod(shape)
    return StoredWeights(by_dtype.total(), tuple(dtype for dtype, _ in by_dtype.most_common()))


def _tensors(header: bytes, file: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        document: Any = parse_json(header, str(file))
        for name, entry in document.items():
            if name != "__metadata__":
                yield str(entry["dtype"])[:16], _shape(entry["shape"])
    except (ValueError, KeyError, TypeError, AttributeError, UsageError):
        raise _damaged(file) from None


def _shape(dimensions: Any) -> list[int]:
    shape = [int(dimension) for dimension in dimensions]
    if len(shape) > _MOST_DIMENSIONS or not all(0 <= dimension <= _LARGEST_DIMENSION for dimension in shape):
        raise ValueError("impossible shape")
    return shape


def _header(file: Path, most_bytes: int) -> bytes:
    check_file(file)
    with open_input(file) as stream:
        try:
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
            if not 0 < length <= os.fstat(stream.fileno()).st_size - _LENGTH_BYTES:
                raise _damaged(file)
            if length > most_bytes:
                raise UsageError(f"{file}: its header, with those of the files beside it, is too large to be read")
            return stream.read(length)
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror or error}") from None


def _damaged(file: Path) -> UsageError:
    return UsageError(f"{file} is not a safetensors file, or its header is damaged")
