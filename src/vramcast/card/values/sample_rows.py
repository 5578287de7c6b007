"""Ops on samples of whole rows, where each column of a tensor has a range of its own: boxes, scores, classes.

Each function gives None where the arguments are not of its kind; samples.py then takes their elements as one range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.values.working_out import CannotWorkOut, call

if TYPE_CHECKING:
    from vramcast.card.values.samples import Sampled

SIZE = 256
"""Rows of a sample, and elements of one without columns."""
MOST_COLUMNS = 256
"""Of a tensor that has whole rows as its sample: the numbers of a box and the classes of most data sets."""

_REDUCE = frozenset(("all", "amax", "amin", "any", "argmax", "argmin", "max", "mean", "min", "sum"))
_NAMES_OF_DIM = ("dim", "dims")


def has_rows(value: Any) -> bool:
    return getattr(value, "rows", None) is not None


def as_rows(value: Any, columns: int) -> Any:
    """A tensor that is broadcast with rows of so many columns: SIZE rows or one, of all columns or one."""
    if isinstance(value, list):
        return [as_rows(item, columns) for item in value]
    if not hasattr(value, "elements"):
        return value
    sample: Sampled = value
    elements, length = sample.elements, sample.size[-1] if sample.size else 1
    if sample.rows is not None and length == columns:
        return sample.rows.reshape(SIZE, columns)
    if elements.numel() == 1:
        return elements.reshape(1, 1)
    if length == 1:
        return elements[:SIZE].reshape(-1, 1)
    if length != columns:
        raise CannotWorkOut
    return tiled(elements, 1 if len(sample.size) == 1 else SIZE, columns)


def tiled(elements: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The elements again and again, as so many rows."""
    count = rows * columns
    return elements.repeat(-(-count // elements.numel()))[:count].reshape(rows, columns)


def elementwise(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> torch.Tensor | None:
    columns = size[-1] if size else 0
    if not any(has_rows(arg) and arg.size[-1] == columns for arg in args):
        return None
    try:
        made = call(func, as_rows(args, columns), {name: as_rows(value, columns) for name, value in kwargs.items()})
        return made.expand(SIZE, columns).reshape(-1)  # type: ignore[no-any-return]
    except (CannotWorkOut, RuntimeError):
        return None


def reduced(func: Any, name: str, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    """Of each row, or of each column."""
    place = next((n for n, one in enumerate(func._schema.arguments) if one.name in _NAMES_OF_DIM), None)
    if name not in _REDUCE or place is None or not has_rows(args[0]):
        return None
    x: Sampled = args[0]
    dims = args[place] if place < len(args) else kwargs.get(func._schema.arguments[place].name)
    if dims is None or place != 1:
        return None
    last = len(x.size) - 1
    chosen = {dim % (last + 1) for dim in (dims if isinstance(dims, list) else [dims])}
    matrix = as_rows(x, x.size[-1])
    if chosen == {last}:
        made = call(func, [matrix, [1] if isinstance(dims, list) else 1], {})
        return made.reshape(-1) if isinstance(made, torch.Tensor) else tuple(one.reshape(-1) for one in made)
    if last in chosen or name.startswith("arg"):
        return None
    made = call(func, [matrix, [0] if isinstance(dims, list) else 0], {})
    values = made if isinstance(made, torch.Tensor) else made[0]
    if name == "sum":
        values = values * (x.count / max(size.numel(), 1) / SIZE)
    columns = values.reshape(1, -1).expand(SIZE, -1).reshape(-1)
    return columns if isinstance(made, torch.Tensor) else (columns, None)


def picked(x: Sampled, columns: torch.Tensor) -> torch.Tensor:
    """Some of the columns, in another order."""
    return as_rows(x, x.size[-1])[:, columns.reshape(-1) % x.size[-1]].reshape(-1)  # type: ignore[no-any-return]


def written(
    func: Any, before: torch.Tensor, columns: list[int], length: int, args: list[Any], kwargs: dict[str, Any]
) -> torch.Tensor:
    """Rows of that length after an op has written into some of their columns. `before`: a sample."""
    matrix = tiled(before, SIZE, length).clone()
    part = matrix[:, columns]
    call(
        func,
        [part, *(_beside(arg, len(columns)) for arg in args)],
        {k: _beside(v, len(columns)) for k, v in kwargs.items()},
    )
    matrix[:, columns] = part
    return matrix.reshape(-1)


def _beside(value: Any, width: int) -> Any:
    """What is written into so many columns."""
    if hasattr(value, "elements") and width == 1 and value.rows is None:
        return value.elements[:SIZE].reshape(-1, 1)
    return as_rows(value, width)


def columns_in(size: torch.Size, stride: tuple[int, ...], offset: int, count: int) -> tuple[list[int], int] | None:
    """Which columns of rows of which length a part of a storage is; None where it is not some columns of all rows.
    `count`: of the storage's elements."""
    has_width = bool(stride) and stride[-1] == 1 and size[-1] > 1
    rows, width = (stride[:-1], size[-1]) if has_width else (stride, 1)
    steps = [step for step, one in zip(rows, size, strict=False) if one > 1]
    if not steps:
        return None
    length = min(steps)
    first = offset % length
    covers = size.numel() // width * length == count
    if not 1 < length <= MOST_COLUMNS or first + width > length or any(step % length for step in steps) or not covers:
        return None
    return list(range(first, first + width)), length


def flipped(x: Sampled, dims: list[int]) -> torch.Tensor:
    last = len(x.size) - 1
    matrix: torch.Tensor = as_rows(x, x.size[-1])
    return (matrix.flip(1) if any(dim % (last + 1) == last for dim in dims) else matrix).reshape(-1)


def columns_put(size: torch.Size, indices: list[Any]) -> tuple[list[int], int] | None:
    """The same for `x[..., indices] = `."""
    by: Any = indices[-1] if indices else None
    if len(indices) != len(size) or any(one is not None for one in indices[:-1]) or not hasattr(by, "elements"):
        return None
    if by.elements.dtype == torch.bool or by.count > SIZE or not 1 < size[-1] <= MOST_COLUMNS:
        return None
    return [int(place) % size[-1] for place in by.elements[: by.count]], size[-1]
