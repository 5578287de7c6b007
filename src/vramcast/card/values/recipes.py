"""Recipes: how the contents of a tensor came about, and how to work them out on the CPU.

A recipe keeps no tensor of the program's, only the op and the recipes of its arguments. `real` computes every element,
for sizes that depend on contents; `recipe_reads.py` computes a sample where the whole would take long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vramcast.card.dispatch.storages import Block
from vramcast.card.values import sample_rows, samples
from vramcast.card.values.biases import Shift
from vramcast.card.values.joined import is_joined_elsewhere, parts_of
from vramcast.card.values.sample_rows import MOST_COLUMNS, SIZE, tiled
from vramcast.card.values.working_out import FAILURES, CannotWorkOut, call

LIMIT = 1 << 23
"""Most elements of a tensor whose contents are ever worked out for a size."""
SPREAD = 0.1
"""Standard deviation of what layers compute."""
_KEPT_BYTES = 1 << 22
_CPU = torch.device("cpu")


class Recipe:
    """How the bytes of a storage came about.

    `made_up`: whether random numbers go into it.
    `for_reads`: it serves reads alone. Where a size depends on it, `stand_in` takes its place, if there is one.
    `seed`: of the random numbers that it draws.
    `draws`: the op itself draws random numbers.
    `work`: what it costs to work out, in elements of an elementwise op.
    `cached`, `sample`: its contents once they were worked out, in full or as a sample.
    """

    __slots__ = (
        "cached", "count", "depth", "draws", "dtype", "for_reads", "made_up", "sample", "seed", "stand_in", "work",
    )  # fmt: skip

    def __init__(self, depth: int, dtype: torch.dtype, nbytes: int) -> None:
        self.depth, self.dtype, self.count = depth, dtype, nbytes // dtype.itemsize
        self.work = self.count
        self.made_up = self.for_reads = self.draws = False
        self.seed = 0
        self.cached: torch.UntypedStorage | None = None
        self.sample: torch.Tensor | None = None
        self.stand_in: Layer | None = None

    def work_out(self, done: dict[Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        raise NotImplementedError

    def views(self) -> Iterator[View]:
        """Views of the op's inputs."""
        return iter(())

    def sampled(self) -> torch.Tensor:
        """Some of its elements, once all that goes into it was worked out."""
        raise NotImplementedError


class Known(Recipe):
    def __init__(self, content: torch.UntypedStorage) -> None:
        super().__init__(0, torch.uint8, content.nbytes())
        self.cached = content


class Layer(Recipe):
    """Numbers that a layer computed; the same again whenever they are asked for."""

    __slots__ = ("counted", "shift", "spread")

    def __init__(
        self, dtype: torch.dtype, nbytes: int, seed: int, *, counted: bool = False, spread: float = SPREAD
    ) -> None:
        super().__init__(0, dtype, nbytes)
        self.seed, self.counted, self.made_up, self.spread = seed, counted, True, spread
        self.shift: Shift | None = None

    def work_out(self, done: dict[Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        return self._numbers(self.count).untyped_storage()

    def sampled(self) -> torch.Tensor:
        if self.count == 1 or not self.dtype.is_floating_point:
            return torch.full((1,), 0 if self.dtype == torch.bool else 1, dtype=self.dtype, device="cpu")
        return self._numbers(SIZE)

    def _numbers(self, count: int) -> torch.Tensor:
        if not self.dtype.is_floating_point:
            raise CannotWorkOut
        generator = torch.Generator().manual_seed(self.seed)
        numbers = torch.randn(count, generator=generator, device="cpu").mul_(self.spread)
        if self.shift is not None:
            self.shift.add_to(numbers, generator)
        return numbers.to(self.dtype)


class View:
    """A tensor among an op's arguments."""

    __slots__ = ("dtype", "offset", "recipe", "size", "stride")

    def __init__(self, recipe: Recipe, tensor: torch.Tensor) -> None:
        self.recipe = recipe
        self.dtype, self.offset = tensor.dtype, int(tensor.storage_offset())
        self.size, self.stride = tensor.size(), tensor.stride()

    def on(self, content: torch.UntypedStorage) -> torch.Tensor:
        view: Any = torch.empty(0, dtype=self.dtype, device="cpu")
        return view.set_(content, self.offset, self.size, self.stride)  # type: ignore[no-any-return]

    def read(self) -> torch.Tensor:
        """The whole contents, once its recipe was worked out."""
        recipe = self.recipe
        if recipe.cached is not None:
            return self.on(recipe.cached)
        parts, rows = self._joined()
        if len(parts) == 1:
            return parts[0].read()
        if rows is not None:
            return tiled(rows, self.size.numel() // self.size[-1], self.size[-1]).reshape(self.size)
        elements = self._elements()
        if torch.Size(self.size) and _is_dense(self.size, self.stride):
            count = self.size.numel()
            shifted = elements.roll(-(self.offset % elements.numel()))
            return shifted.repeat(-(-count // elements.numel()))[:count].reshape(self.size)
        return samples.laid_out(elements, self.offset, self.size, self.stride)

    def sampled(self) -> samples.Sampled:
        if self.recipe.cached is not None:
            return samples.of_content(self.on(self.recipe.cached))
        parts, rows = self._joined()
        if len(parts) == 1:
            return parts[0].sampled()
        if rows is not None:
            return samples.Sampled(samples.take(rows), self.size, rows)
        elements = self._elements()
        if self.size.numel() == 1:
            elements = elements[self.offset % elements.numel()].reshape(1)
        return samples.of_view(elements, self.offset, self.size, self.stride)

    def _joined(self) -> tuple[list[View], torch.Tensor | None]:
        """The parts that it is made of, where they were joined; and SIZE rows of them, where they are its columns."""
        parts, along = parts_of(self)
        if len(parts) < 2 or along != len(self.size) - 1 or self.size[-1] > MOST_COLUMNS:
            return parts, None
        return parts, torch.cat([samples.columns(part.sampled(), len(self.size)) for part in parts], dim=1).reshape(-1)

    def _elements(self) -> torch.Tensor:
        if self.recipe.sample is None:
            raise CannotWorkOut
        return self.recipe.sample.to(self.dtype)


def _is_dense(size: torch.Size, stride: tuple[int, ...]) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


class Ingredients:
    """An op's arguments, each tensor of the card as a view."""

    __slots__ = ("args", "depth", "for_reads", "kwargs", "made_up")

    def __init__(self, args: list[Any], kwargs: dict[str, Any], for_reads: bool) -> None:
        self.args, self.kwargs, self.for_reads = args, kwargs, for_reads
        depth, made_up = 0, False
        for value in (*args, *kwargs.values()) if kwargs else args:
            for view in (value,) if isinstance(value, View) else _views(value) if isinstance(value, list) else ():
                recipe = view.recipe
                made_up = made_up or recipe.made_up
                if recipe.depth > depth:
                    depth = recipe.depth
        self.depth, self.made_up = 1 + depth, made_up


class Result(Recipe):
    """One output of an op that made a new tensor."""

    __slots__ = ("args", "func", "kwargs", "output", "size", "stride")

    def __init__(self, func: Any, given: Ingredients, output: int, out: torch.Tensor) -> None:
        super().__init__(given.depth, out.dtype, out.nbytes)
        self.func, self.args, self.kwargs, self.output = func, given.args, given.kwargs, output
        self.made_up, self.for_reads = given.made_up, given.for_reads
        self.size, self.stride = out.size(), out.stride()

    def views(self) -> Iterator[View]:
        return _views([self.args, self.kwargs])

    def work_out(self, done: dict[Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        with _seeded(self.func, self.seed):
            made = call(self.func, real(self.args, done), real(self.kwargs, done))
        if not isinstance(made, torch.Tensor):
            made = made[self.output]
        if made.shape != self.size or made.dtype != self.dtype:
            raise CannotWorkOut
        if made.stride() != self.stride or made.storage_offset() or _shared(made):
            made = torch.empty_strided(self.size, self.stride, dtype=made.dtype, device="cpu").copy_(made)
        content: torch.UntypedStorage = made.untyped_storage()
        return content

    def sampled(self) -> torch.Tensor:
        name = self.func._schema.name.removeprefix("aten::")
        with _seeded(self.func, self.seed):
            made = samples.run(self.func, name, _sampled(self.args), _sampled(self.kwargs), self.size)
        if not isinstance(made, torch.Tensor):
            made = made[self.output]
        if made is None:
            raise CannotWorkOut
        return made.to(self.dtype).reshape(-1)  # type: ignore[no-any-return]


class Written(Recipe):
    """What a storage holds after an op has written into it, or into a part of it."""

    __slots__ = ("args", "before", "func", "kwargs", "target")

    def __init__(self, before: Recipe | int, func: Any, target: torch.Tensor, given: Ingredients, block: Block):
        super().__init__(given.depth, target.dtype, block.nbytes)
        self.before, self.func, self.args, self.kwargs = before, func, given.args, given.kwargs
        self.target = View(_NOWHERE, target)
        self.made_up, self.for_reads = given.made_up, given.for_reads
        if isinstance(before, Recipe):
            self.depth, self.made_up = max(self.depth, 1 + before.depth), self.made_up or before.made_up

    def views(self) -> Iterator[View]:
        if isinstance(self.before, Recipe):
            whole = View.__new__(View)
            whole.recipe, whole.dtype, whole.offset = self.before, self.dtype, 0
            whole.size, whole.stride = torch.Size((self.count,)), (1,)
            yield whole
        yield from _views([self.args, self.kwargs])

    def work_out(self, done: dict[Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        if isinstance(self.before, int):
            content = torch.zeros(self.before, dtype=torch.uint8, device="cpu").untyped_storage()
        else:
            content = _worked_out(self.before, done).clone()
        with _seeded(self.func, self.seed):
            call(self.func, [self.target.on(content), *real(self.args, done)], real(self.kwargs, done))
        return content

    def sampled(self) -> torch.Tensor:
        if isinstance(self.before, int):
            elements = torch.zeros(SIZE, dtype=self.dtype, device="cpu")
        else:
            before = self.before.sample
            if before is None:
                before = next(self.views()).sampled().elements
            elements = before.to(self.dtype, copy=True) if before.numel() > 1 else before.repeat(SIZE)
        columns = self._in_columns(elements)
        if columns is not None:
            return columns
        if self.target.size.numel() == self.count and self.target.dtype == self.dtype:
            elements = samples.take(elements) if elements.numel() > SIZE else elements
            args, kwargs = _sampled(self.args), _sampled(self.kwargs)
            with _seeded(self.func, self.seed):
                call(self.func, [elements, *samples.elements_of(args)], samples.elements_of(kwargs))
        return elements  # what is written into a part of it is too little to show

    def _in_columns(self, elements: torch.Tensor) -> torch.Tensor | None:
        """As rows, where some of their columns are written."""
        target, func, args = self.target, self.func, _sampled(self.args)
        if func._schema.name == "aten::index_put_":
            part = sample_rows.columns_put(target.size, args[0])
            func, args = torch.ops.aten.copy_.default, args[1:2]
        else:
            part = sample_rows.columns_in(target.size, target.stride, target.offset, self.count)
        if part is None or elements.numel() not in (SIZE, SIZE * part[1]) or target.dtype != self.dtype:
            return None
        try:
            with _seeded(func, self.seed):
                return sample_rows.written(func, elements, *part, args, _sampled(self.kwargs))
        except FAILURES:
            return None


def _shared(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


@contextmanager
def _seeded(func: Any, seed: int) -> Iterator[None]:
    """An op that draws random numbers draws the same each time, and the program's own draws are as they were."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


def _sampled(value: Any) -> Any:
    if isinstance(value, View):
        return value.sampled()
    if isinstance(value, torch.Tensor):
        return samples.of_content(value)
    if isinstance(value, list):
        return [_sampled(item) for item in value]
    if isinstance(value, dict):
        return {name: _CPU if name == "device" else _sampled(item) for name, item in value.items()}
    return value


def _worked_out(recipe: Recipe, done: dict[Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
    content = recipe.cached if recipe.cached is not None else done.get(recipe)
    if content is None:
        content = done[recipe] = _whole(recipe, done)
        if content.nbytes() <= _KEPT_BYTES:
            recipe.cached = content
    return content


def _whole(recipe: Recipe, done: dict[Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
    if recipe.count > LIMIT:
        raise CannotWorkOut
    if recipe.sample is not None and not is_joined_elsewhere(recipe):  # read before
        repeats = -(-recipe.count // recipe.sample.numel())
        return recipe.sample.repeat(repeats)[: recipe.count].clone().untyped_storage()
    if not recipe.for_reads:
        return recipe.work_out(done)
    if recipe.draws:  # a size may depend on what was drawn as on any other number
        try:
            return recipe.work_out(done)
        except FAILURES:
            pass
    if recipe.stand_in is None:
        raise CannotWorkOut
    return recipe.stand_in.work_out(done)


def real(value: Any, done: dict[Recipe, torch.UntypedStorage]) -> Any:
    if isinstance(value, View):
        return value.on(_worked_out(value.recipe, done))
    if isinstance(value, list):
        return [real(item, done) for item in value]
    if isinstance(value, dict):
        return {name: _CPU if name == "device" else real(item, done) for name, item in value.items()}
    return value


def _views(value: Any) -> Iterator[View]:
    if isinstance(value, View):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _views(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _views(item)


_NOWHERE = Recipe(0, torch.uint8, 0)
