"""Plausible contents of tensors that only a real run would know, worked out when a size depends on them.

How many boxes overlap enough, how many tokens an expert gets, how many elements pass a threshold: such sizes come from
activations, which nobody knows without running the network, and from data, which is known. So each small tensor that a
forward pass makes with simple arithmetic remembers how it was made (no tensor is kept, only the recipe). When the
program asks for a size, the recipe is run on the CPU with small random numbers in place of what a layer computed, as a
freshly initialised head would give. What is known stays exact: boxes of the data set, anchors, labels, masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from vramcast.virtual_gpu.storages import ATTRIBUTE, UNKNOWN_CONTENT, Block, block_of

if TYPE_CHECKING:
    from vramcast.virtual_gpu.position import Position

LIMIT = 1 << 23
"""Most elements of a tensor whose contents are ever worked out."""
DEPTH = 150
"""Longest chain of recipes; beyond it a tensor counts as made by a layer."""
SPREAD = 0.1
"""Standard deviation of what layers compute."""
_KEPT_BYTES = 1 << 22
_CPU = torch.device("cpu")
_OVERWRITES = frozenset({"copy_", "fill_", "zero_"})

# Elementwise arithmetic, comparisons, reductions, selections: cheap on the CPU, and what sizes are made of. Layers
# (convolutions, matrix products, norms, attention) are not among them.
_SIMPLE = frozenset((
    "abs", "add", "addcdiv", "addcmul", "all", "amax", "amin", "any", "argmax", "argmin", "bitwise_and", "bitwise_not",
    "bitwise_or", "bitwise_xor", "cat", "ceil", "clamp", "clamp_max", "clamp_min", "clone", "copy", "cos", "cumsum",
    "div", "eq", "exp", "expm1", "fill", "flip", "floor", "floor_divide", "fmod", "full", "full_like", "gather", "ge",
    "gt", "index", "index_add", "index_copy", "index_fill", "index_put", "index_select", "isfinite", "isinf", "isnan",
    "le", "lerp", "linalg_vector_norm", "log", "log1p", "log2", "_log_softmax", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "masked_fill", "max", "maximum", "mean", "min", "minimum", "mul", "ne", "neg",
    "new_full", "new_ones", "new_zeros", "norm", "ones", "ones_like", "pow", "prod", "reciprocal", "relu", "remainder",
    "repeat", "roll", "round", "rsqrt", "rsub", "scatter", "scatter_add", "select_scatter", "sigmoid", "sign", "sin",
    "slice_scatter", "_softmax", "sort", "sqrt", "square", "stack", "sub", "sum", "take_along_dim", "tanh", "_to_copy",
    "topk", "tril", "triu", "trunc", "where", "xlogy", "zero", "zeros", "zeros_like", "__and__", "__or__", "__xor__",
))  # fmt: skip


class _Recipe:
    """How the bytes of a storage came about. `made_up`: whether random numbers go into it."""

    __slots__ = ("cached", "depth", "made_up")

    def __init__(self, depth: int, made_up: bool = False) -> None:
        self.depth = depth
        self.made_up = made_up
        self.cached: torch.UntypedStorage | None = None

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        raise NotImplementedError


class _Known(_Recipe):
    def __init__(self, content: torch.UntypedStorage) -> None:
        super().__init__(0)
        self.cached = content


class _Layer(_Recipe):
    """Numbers that a layer computed; the same again whenever they are asked for."""

    __slots__ = ("dtype", "nbytes", "seed")

    def __init__(self, dtype: torch.dtype, nbytes: int, seed: int) -> None:
        super().__init__(0, made_up=True)
        self.dtype, self.nbytes, self.seed = dtype, nbytes, seed

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        numbers = torch.randn(self.nbytes // self.dtype.itemsize, generator=torch.Generator().manual_seed(self.seed))
        return numbers.mul_(SPREAD).to(self.dtype).untyped_storage()


class _View:
    """A tensor among an op's arguments."""

    __slots__ = ("dtype", "offset", "recipe", "size", "stride")

    def __init__(self, recipe: _Recipe, tensor: torch.Tensor) -> None:
        self.recipe = recipe
        self.dtype, self.offset = tensor.dtype, tensor.storage_offset()
        self.size, self.stride = tensor.size(), tensor.stride()

    def on(self, content: torch.UntypedStorage) -> torch.Tensor:
        view: Any = torch.empty(0, dtype=self.dtype)
        return view.set_(content, self.offset, self.size, self.stride)  # type: ignore[no-any-return]


class _Result(_Recipe):
    """One output of an op that made a new tensor."""

    __slots__ = ("args", "func", "kwargs", "output", "view")

    def __init__(self, func: Any, args: list[Any], kwargs: dict[str, Any], output: int, out: torch.Tensor, depth: int):
        super().__init__(depth)
        self.func, self.args, self.kwargs, self.output = func, args, kwargs, output
        self.view = _View(self, out)

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        made = self.func(*_real(self.args, done), **_real(self.kwargs, done))
        if not isinstance(made, torch.Tensor):
            made = made[self.output]
        if made.shape != self.view.size or made.dtype != self.view.dtype:
            raise LookupError
        if made.stride() != self.view.stride or made.storage_offset() or _shared(made):
            made = torch.empty_strided(self.view.size, self.view.stride, dtype=made.dtype).copy_(made)
        content: torch.UntypedStorage = made.untyped_storage()
        return content


class _Written(_Recipe):
    """What a storage holds after an op has written into it, or into a part of it."""

    __slots__ = ("args", "before", "func", "kwargs", "target")

    def __init__(
        self, before: _Recipe | int, func: Any, args: tuple[Any, list[Any]], kwargs: dict[str, Any], depth: int
    ) -> None:
        super().__init__(depth)
        self.before, self.func, (self.target, self.args), self.kwargs = before, func, args, kwargs

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        if isinstance(self.before, int):
            content = torch.zeros(self.before, dtype=torch.uint8).untyped_storage()
        else:
            content = _worked_out(self.before, done).clone()
        self.func(self.target.on(content), *_real(self.args, done), **_real(self.kwargs, done))
        return content


def _shared(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()


def _worked_out(recipe: _Recipe, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
    content = recipe.cached if recipe.cached is not None else done.get(recipe)
    if content is None:
        content = done[recipe] = recipe.work_out(done)
        if content.nbytes() <= _KEPT_BYTES:
            recipe.cached = content
    return content


def _real(value: Any, done: dict[_Recipe, torch.UntypedStorage]) -> Any:
    if isinstance(value, _View):
        return value.on(_worked_out(value.recipe, done))
    if isinstance(value, list):
        return [_real(item, done) for item in value]
    if isinstance(value, dict):
        return {name: _CPU if name == "device" else _real(item, done) for name, item in value.items()}
    return value


class Guesses:
    """Notes recipes while a forward pass runs, and works contents out when they are needed."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._simple: dict[int, str | None] = {}
        """By the op's address: the dispatcher keeps every op that it met."""
        self._layers = 0
        self._layers_of_step = 0
        self.made_up = False
        """Whether random numbers went into the contents worked out last; otherwise they are exact."""

    # -- noting recipes -------------------------------------------------------------------------------------

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """After an op that makes new tensors."""
        if self._position.backward_depth:
            return
        outs = out if isinstance(out, (list, tuple)) else (out,)
        if self._name(func) is None or not outs or not isinstance(outs[0], torch.Tensor) or outs[0].numel() > LIMIT:
            return
        fresh = []
        for index, tensor in enumerate(outs):
            block = _block_without_recipe(tensor)
            if block is not None:
                fresh.append((index, tensor, block))
        if not fresh:
            return
        found = self._described(args, kwargs)
        if found is not None:
            described, named, depth, made_up = found
            for index, tensor, block in fresh:
                block.recipe = _Result(func, described, named, index, tensor, depth)
                block.recipe.made_up = made_up

    def note_written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After an op that wrote into its first argument."""
        target = args[0] if args else None
        block = block_of(target) if isinstance(target, torch.Tensor) and target.is_meta else None
        if block is None:
            return
        if block.values is not None:
            block.recipe = None
            return
        before, block.recipe = block.recipe, None
        name = self._name(func)
        if name is None or target is None or target.numel() > LIMIT:
            return
        whole = target.numel() * target.element_size() == block.nbytes
        start: _Recipe | int | None = block.nbytes if name in _OVERWRITES and whole else before
        if start is None:
            start = self._layer(target, block)
        found = self._described(args[1:], kwargs)
        if start is None or found is None:
            return
        described, named, depth, made_up = found
        if not isinstance(start, int):
            depth, made_up = max(depth, 1 + start.depth), made_up or start.made_up
        if depth <= DEPTH:
            block.recipe = _Written(start, func, (_View(_NOWHERE, target), described), named, depth)
            block.recipe.made_up = made_up

    def keep(self, block: Block) -> None:
        """Before known values are given up because something unknown is written over a part of them."""
        if block.recipe is None and block.values is not None:
            block.recipe = _Known(block.values)

    def _name(self, func: Any) -> str | None:
        """The op's name if it is simple."""
        if id(func) not in self._simple:
            name = func._schema.name
            plain = name.removeprefix("aten::")
            simple = name.startswith("aten::") and (plain in _SIMPLE or plain.removesuffix("_") in _SIMPLE)
            self._simple[id(func)] = plain if simple else None
        return self._simple[id(func)]

    def _described(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any], int, bool] | None:
        try:
            described = [self._describe(arg) for arg in args]
            named = {name: self._describe(value) for name, value in kwargs.items()}
        except LookupError:
            return None
        recipes = [view.recipe for view in _views([*described, *named.values()])]
        depth = 1 + max((recipe.depth for recipe in recipes), default=0)
        return (described, named, depth, any(r.made_up for r in recipes)) if depth <= DEPTH else None

    def _describe(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                if value.numel() > LIMIT or getattr(value.untyped_storage(), UNKNOWN_CONTENT, False):
                    raise LookupError
                return value
            block = block_of(value)
            if block is None:
                raise LookupError
            recipe = self._recipe_of(value, block)
            if recipe is None:
                raise LookupError
            return _View(recipe, value)
        if isinstance(value, (list, tuple)):
            return [self._describe(item) for item in value]
        return value

    def _recipe_of(self, tensor: torch.Tensor, block: Block) -> _Recipe | None:
        if block.recipe is None:
            block.recipe = _Known(block.values) if block.values is not None else self._layer(tensor, block)
        return block.recipe  # type: ignore[no-any-return]

    def _layer(self, tensor: torch.Tensor, block: Block) -> _Recipe | None:
        if not tensor.dtype.is_floating_point or block.nbytes > LIMIT * tensor.element_size():
            return None
        # Each step's layers compute the same: what is asked of them then does not change from step to step.
        if self._layers_of_step != self._position.steps_done:
            self._layers, self._layers_of_step = 0, self._position.steps_done
        self._layers += 1
        return _Layer(tensor.dtype, block.nbytes, self._layers)

    # -- working contents out -------------------------------------------------------------------------------

    def contents(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A CPU tensor as plausible as can be; None where nothing is known of how it was made."""
        found = self.arguments((tensor,), {})
        return None if found is None else found[0][0]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
        """An op's arguments as CPU tensors; None where one cannot be worked out."""
        found = self._described(args, kwargs)
        if found is None:
            return None
        self.made_up = found[3]
        done: dict[_Recipe, torch.UntypedStorage] = {}
        try:
            return _real(found[0], done), _real(found[1], done)
        except (LookupError, RuntimeError, NotImplementedError, TypeError):
            return None


_NOWHERE = _Recipe(0)


def _views(value: Any) -> Iterator[_View]:
    if isinstance(value, _View):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _views(item)


def _block_without_recipe(tensor: Any) -> Block | None:
    if not isinstance(tensor, torch.Tensor) or not tensor.is_meta or tensor.layout is not torch.strided:
        return None
    block: Block | None = tensor.untyped_storage().__dict__.get(ATTRIBUTE)
    if block is None or block.values is not None or block.recipe is not None:
        return None
    return block if tensor.numel() * tensor.element_size() == block.nbytes else None
