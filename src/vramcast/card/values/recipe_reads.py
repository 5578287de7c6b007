"""Work recipes out for a value that the program reads: in full where that is quick, else from samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from vramcast.card.values.known_values import one_thread
from vramcast.card.values.recipes import Layer, Recipe, View
from vramcast.card.values.working_out import FAILURES

READ_LIMIT = 1 << 22
"""Most elements, all that go into it together, for which a value that is read is worked out in full."""
_SMALL = 1 << 12
"""A tensor with no more elements is laid out in full, also where it came of samples."""


def prepare(recipe: Recipe) -> None:
    """Work a recipe out for a read, and all that goes into it."""
    if recipe.cached is None and recipe.sample is None:
        _prepare_all(recipe, in_full=cost(recipe, set()) <= READ_LIMIT)


def begin_again(recipe: Recipe) -> None:
    """A chain has become long: its contents are worked out now, and what follows starts from them."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes(), one_thread():
        prepare(recipe)
    recipe.depth = 0


def cost(recipe: Recipe, counted: set[Recipe]) -> int:
    """Elements to be worked out."""
    if recipe in counted or recipe.cached is not None:
        return 0
    counted.add(recipe)
    total = recipe.work
    if recipe.sample is None:
        for view in recipe.views():
            total += cost(view.recipe, counted)
            if total > READ_LIMIT:
                break
    return total


def _prepare_all(recipe: Recipe, *, in_full: bool) -> None:
    if recipe.cached is not None or recipe.sample is not None:
        return
    views = list(recipe.views())
    for view in views:
        _prepare_all(view.recipe, in_full=in_full)
    if isinstance(recipe, Layer):
        whole = recipe.dtype.is_floating_point and 1 < recipe.count <= (READ_LIMIT if in_full else _SMALL)
    else:
        whole = recipe.count <= READ_LIMIT and all(view.recipe.cached is not None for view in views)
    try:
        elements = _all_elements(recipe) if whole else recipe.sampled()
        if views and recipe.made_up and _is_new_infinity(recipe, elements, views):
            elements = elements.nan_to_num(1.0, 1.0, 1.0)
    except FAILURES:
        elements = Layer(recipe.dtype, recipe.count * recipe.dtype.itemsize, recipe.seed).sampled()
        recipe.made_up = True
        whole = False
    if not whole and recipe.count <= _SMALL:
        elements = elements.repeat(-(-recipe.count // max(elements.numel(), 1)))[: recipe.count].clone()
        whole = True
    if whole:
        recipe.cached = elements.untyped_storage()
    else:
        recipe.sample = elements


def _all_elements(recipe: Recipe) -> torch.Tensor:
    elements: Any = torch.empty(0, dtype=recipe.dtype, device="cpu")
    return elements.set_(recipe.work_out({}), 0, (recipe.count,), (1,))  # type: ignore[no-any-return]


def _is_new_infinity(recipe: Recipe, elements: torch.Tensor, views: list[View]) -> bool:
    """Made-up numbers divided by zero, or their logarithm was taken: the real ones are taken to be sound."""
    if not recipe.dtype.is_floating_point or bool(elements.isfinite().all()):
        return False
    for value in _plain([getattr(recipe, "args", []), getattr(recipe, "kwargs", {})]):
        if isinstance(value, float) and value - value != 0:
            return False
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(value.isfinite().all()):
            return False
    given = (view.sampled().elements for view in views)
    return all(bool(part.isfinite().all()) for part in given if part.is_floating_point())


def _plain(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _plain(item)
    elif isinstance(value, dict):
        yield from _plain(list(value.values()))
    elif not isinstance(value, View):
        yield value
