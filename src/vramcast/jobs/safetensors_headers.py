"""What lies in safetensors files, from their headers alone: names, dtypes and shapes. No weights are read."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.access import check_file
from vramcast.errors import UsageError

_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True, slots=True)
class StoredWeights:
    count: int
    dtypes: tuple[str, ...]
    """As the files name them (F16, BF16), the most common first."""


def stored_weights(folder: Path) -> StoredWeights | None:
    """Over all safetensors files of a folder; None where there is none."""
    check_file(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    by_dtype: Counter[str] = Counter()
    for file in files:
        for dtype, shape in _tensors(file):
            by_dtype[dtype] += math.prod(shape)
    return StoredWeights(by_dtype.total(), tuple(dtype for dtype, _ in by_dtype.most_common()))


def _tensors(file: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        header: Any = json.loads(_header(file))
        for name, entry in header.items():
            if name != "__metadata__":
                yield str(entry["dtype"]), [int(dimension) for dimension in entry["shape"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"{file} is not a safetensors file, or its header is damaged") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from None


def _header(file: Path) -> bytes:
    check_file(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(_LARGEST_HEADER_BYTES, file.stat().st_size):
            raise ValueError("impossible header length")
        return stream.read(length)
