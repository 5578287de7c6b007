"""Views of tensors that `cat` or `stack` has made, as views of the parts: classes beside boxes are still classes.

It does not matter along which dimension they were joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.values.sample_rows import SIZE

if TYPE_CHECKING:
    from vramcast.card.values.recipes import Result, View

_JOINS = ("aten::cat", "aten::stack")


def is_joined_elsewhere(recipe: Any) -> bool:
    """Whether its own sample mixes what was joined: along another dimension than the last."""
    return _is_join(recipe) and recipe.sample.numel() <= SIZE


def _is_join(recipe: Any) -> bool:
    return hasattr(recipe, "output") and recipe.func._schema.name in _JOINS


def parts_of(view: View) -> tuple[list[View], int | None]:
    """The parts that a view of a joined tensor is made of, and which of its dimensions they follow each other in; none
    where it is not known to be such a view."""
    recipe: Any = view.recipe
    if not _is_join(recipe) or view.dtype != recipe.dtype or not view.size.numel():
        return [], None
    where = _dimensions(recipe, view)
    if where is None:
        return [], None
    first, place_of = where
    is_stack = recipe.func._schema.name == "aten::stack"
    dim = (recipe.args[1] if len(recipe.args) > 1 else recipe.kwargs.get("dim", 0)) % len(recipe.size)
    along = next((place for place, own in enumerate(place_of) if own == dim), None)
    begin, length = first[dim], 1 if along is None else view.size[along]
    found, start = [], 0
    for part in recipe.args[0]:
        if not hasattr(part, "recipe") or part.dtype != recipe.dtype:
            return [], None
        own_length = 1 if is_stack else part.size[dim] if len(part.size) == len(recipe.size) else 0
        low, high = max(begin, start), min(begin + length, start + own_length)
        if low < high:
            found.append(_of_part(view, part, place_of, [*first[:dim], low - start, *first[dim + 1 :]], dim, is_stack))
            if along is not None:
                found[-1].size = torch.Size((*view.size[:along], high - low, *view.size[along + 1 :]))
        start += own_length
    return found, along


def _dimensions(recipe: Result, view: View) -> tuple[list[int], list[int | None]] | None:
    """Where the view begins in the joined tensor, and which of that one's dimensions each of its own is."""
    order = sorted(range(len(recipe.size)), key=lambda dim: -recipe.stride[dim])
    first, left = [0] * len(recipe.size), view.offset
    for dim in order:
        if recipe.size[dim] > 1:
            first[dim], left = divmod(left, recipe.stride[dim])
    by_stride = {recipe.stride[dim]: dim for dim in order if recipe.size[dim] > 1}
    place_of = [
        None if length == 1 or not step else by_stride.get(step, -1)
        for length, step in zip(view.size, view.stride, strict=True)
    ]
    used = [dim for dim in place_of if dim is not None]
    ends = [
        first[dim] + length <= recipe.size[dim]
        for dim, length in zip(place_of, view.size, strict=True)
        if dim is not None
    ]
    if left or -1 in used or len(set(used)) < len(used) or not all(ends):
        return None
    return first, place_of


def _of_part(view: View, part: View, place_of: list[int | None], first: list[int], dim: int, is_stack: bool) -> View:
    strides: list[int] = [*part.stride[:dim], 0, *part.stride[dim:]] if is_stack else list(part.stride)
    own = object.__new__(type(view))
    own.recipe, own.dtype, own.size = part.recipe, part.dtype, view.size
    own.offset = part.offset + sum(place * step for place, step in zip(first, strides, strict=True))
    own.stride = tuple(0 if place is None else strides[place] for place in place_of)
    return own
