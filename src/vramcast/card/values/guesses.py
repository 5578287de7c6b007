"""Plausible contents of tensors that only a real run would know, worked out when the program asks for them.

How many boxes overlap enough, how many tokens an expert gets, whether a loss is finite: such answers come from
activations, which nobody knows without running the network, and from data, which is known. So each tensor that a
forward pass makes with simple arithmetic remembers how it was made (no tensor is kept, only the recipe). When the
program asks, the recipe is run on the CPU with small random numbers in place of what a layer computed, as a freshly
initialised head would give. What is known stays exact: boxes of the data set, anchors, labels, masks.

There are two ways to ask, and what one of them has worked out the other keeps to:

`arguments`, `contents`   for a size that depends on contents: every element is worked out, up to LIMIT of them
`read`                    for a value that the program reads: from samples (see samples.py) where the whole would take
                          long. Numbers are finite unless the program itself brings an infinity in, and a number of
                          which nothing is known is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from vramcast.card.dispatch.storages import ATTRIBUTE, UNKNOWN_CONTENT, Block, block_of
from vramcast.card.values import samples, small_algebra
from vramcast.card.values.known_values import one_thread
from vramcast.card.values.origins import Origins

if TYPE_CHECKING:
    from vramcast.card.dispatch.position import Position

LIMIT = 1 << 23
"""Most elements of a tensor whose contents are ever worked out for a size."""
READ_LIMIT = 1 << 22
"""Most elements, all that go into it together, for which a value that is read is worked out in full."""
DEPTH = 150
"""Longest chain of recipes; beyond it a tensor counts as made by a layer."""
SPREAD = 0.1
"""Standard deviation of what layers compute."""
GRADIENT_SPREAD = 1e-3
"""Standard deviation of gradients: a loss is a mean over many elements, and so small in each of them that the norm of
all is about one."""
_KEPT_BYTES = 1 << 22
_SMALL = 1 << 12
"""A tensor with no more elements is laid out in full, also where it came of samples."""
_UNCOUNTED = 1 << 32
_CPU = torch.device("cpu")
_HOLDS_TENSORS = (torch.Tensor, list, tuple)
_OVERWRITES = frozenset({"copy_", "fill_", "zero_"})
_RANDOM_WRITES = frozenset({"bernoulli_", "exponential_", "log_normal_", "normal_", "random_", "uniform_"})
_RESHAPES = frozenset(
    {"as_strided_", "detach_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
)
"""They change the shape of the tensor they are given, and nothing that it holds."""
_FAILURES = (LookupError, RuntimeError, NotImplementedError, TypeError, ValueError)

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
        self.stand_in: _Layer | None = None

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        raise NotImplementedError

    def views(self) -> Iterator[_View]:
        """Views of the op's inputs."""
        return iter(())

    def sampled(self) -> torch.Tensor:
        """Some of its elements, once all that goes into it was worked out."""
        raise NotImplementedError


class _Known(_Recipe):
    def __init__(self, content: torch.UntypedStorage) -> None:
        super().__init__(0, torch.uint8, content.nbytes())
        self.cached = content


class _Layer(_Recipe):
    """Numbers that a layer computed; the same again whenever they are asked for."""

    __slots__ = ("counted", "spread")

    def __init__(
        self, dtype: torch.dtype, nbytes: int, seed: int, *, counted: bool = False, spread: float = SPREAD
    ) -> None:
        super().__init__(0, dtype, nbytes)
        self.seed, self.counted, self.made_up, self.spread = seed, counted, True, spread

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        return self._numbers(self.count).untyped_storage()

    def sampled(self) -> torch.Tensor:
        if self.count == 1 or not self.dtype.is_floating_point:
            return torch.full((1,), 0 if self.dtype == torch.bool else 1, dtype=self.dtype, device="cpu")
        return self._numbers(samples.SIZE)

    def _numbers(self, count: int) -> torch.Tensor:
        if not self.dtype.is_floating_point:
            raise LookupError
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(count, generator=generator, device="cpu").mul_(self.spread).to(self.dtype)


class _View:
    """A tensor among an op's arguments."""

    __slots__ = ("dtype", "offset", "recipe", "size", "stride")

    def __init__(self, recipe: _Recipe, tensor: torch.Tensor) -> None:
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
        elements = self._elements()
        if torch.Size(self.size) and _is_dense(self.size, self.stride):
            count = self.size.numel()
            shifted = elements.roll(-(self.offset % elements.numel()))
            return shifted.repeat(-(-count // elements.numel()))[:count].reshape(self.size)
        return samples.laid_out(elements, self.offset, self.size, self.stride)

    def sampled(self) -> samples.Sampled:
        if self.recipe.cached is not None:
            return samples.Sampled(samples.take(self.on(self.recipe.cached)), self.size)
        elements = self._elements()
        if self.size.numel() == 1:
            elements = elements[self.offset % elements.numel()].reshape(1)
        return samples.Sampled(elements, self.size)

    def _elements(self) -> torch.Tensor:
        if self.recipe.sample is None:
            raise LookupError
        return self.recipe.sample.to(self.dtype)


def _is_dense(size: torch.Size, stride: tuple[int, ...]) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True


class _Ingredients:
    """An op's arguments, each tensor of the card as a view."""

    __slots__ = ("args", "depth", "for_reads", "kwargs", "made_up")

    def __init__(self, args: list[Any], kwargs: dict[str, Any], for_reads: bool) -> None:
        self.args, self.kwargs, self.for_reads = args, kwargs, for_reads
        depth, made_up = 0, False
        for value in (*args, *kwargs.values()) if kwargs else args:
            for view in (value,) if isinstance(value, _View) else _views(value) if isinstance(value, list) else ():
                recipe = view.recipe
                made_up = made_up or recipe.made_up
                if recipe.depth > depth:
                    depth = recipe.depth
        self.depth, self.made_up = 1 + depth, made_up


class _Result(_Recipe):
    """One output of an op that made a new tensor."""

    __slots__ = ("args", "func", "kwargs", "output", "size", "stride")

    def __init__(self, func: Any, given: _Ingredients, output: int, out: torch.Tensor) -> None:
        super().__init__(given.depth, out.dtype, out.nbytes)
        self.func, self.args, self.kwargs, self.output = func, given.args, given.kwargs, output
        self.made_up, self.for_reads = given.made_up, given.for_reads
        self.size, self.stride = out.size(), out.stride()

    def views(self) -> Iterator[_View]:
        return _views([self.args, self.kwargs])

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        with _seeded(self.func, self.seed):
            made = self.func(*_real(self.args, done), **_real(self.kwargs, done))
        if not isinstance(made, torch.Tensor):
            made = made[self.output]
        if made.shape != self.size or made.dtype != self.dtype:
            raise LookupError
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
            raise LookupError
        return made.to(self.dtype).reshape(-1)  # type: ignore[no-any-return]


class _Written(_Recipe):
    """What a storage holds after an op has written into it, or into a part of it."""

    __slots__ = ("args", "before", "func", "kwargs", "target")

    def __init__(self, before: _Recipe | int, func: Any, target: torch.Tensor, given: _Ingredients, block: Block):
        super().__init__(given.depth, target.dtype, block.nbytes)
        self.before, self.func, self.args, self.kwargs = before, func, given.args, given.kwargs
        self.target = _View(_NOWHERE, target)
        self.made_up, self.for_reads = given.made_up, given.for_reads
        if isinstance(before, _Recipe):
            self.depth, self.made_up = max(self.depth, 1 + before.depth), self.made_up or before.made_up

    def views(self) -> Iterator[_View]:
        if isinstance(self.before, _Recipe):
            whole = _View.__new__(_View)
            whole.recipe, whole.dtype, whole.offset = self.before, self.dtype, 0
            whole.size, whole.stride = torch.Size((self.count,)), (1,)
            yield whole
        yield from _views([self.args, self.kwargs])

    def work_out(self, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
        if isinstance(self.before, int):
            content = torch.zeros(self.before, dtype=torch.uint8, device="cpu").untyped_storage()
        else:
            content = _worked_out(self.before, done).clone()
        with _seeded(self.func, self.seed):
            self.func(self.target.on(content), *_real(self.args, done), **_real(self.kwargs, done))
        return content

    def sampled(self) -> torch.Tensor:
        if isinstance(self.before, int):
            elements = torch.zeros(samples.SIZE, dtype=self.dtype, device="cpu")
        else:
            before = next(self.views()).sampled().elements
            elements = before.to(self.dtype, copy=True) if before.numel() > 1 else before.repeat(samples.SIZE)
        if self.target.size.numel() == self.count and self.target.dtype == self.dtype:
            args, kwargs = _sampled(self.args), _sampled(self.kwargs)
            with _seeded(self.func, self.seed):
                self.func(elements, *samples.elements_of(args), **samples.elements_of(kwargs))
        return elements  # what is written into a part of it is too little to show


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


# -- sizes: every element ---------------------------------------------------------------------------------------


def _worked_out(recipe: _Recipe, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
    content = recipe.cached if recipe.cached is not None else done.get(recipe)
    if content is None:
        content = done[recipe] = _whole(recipe, done)
        if content.nbytes() <= _KEPT_BYTES:
            recipe.cached = content
    return content


def _whole(recipe: _Recipe, done: dict[_Recipe, torch.UntypedStorage]) -> torch.UntypedStorage:
    if recipe.count > LIMIT:
        raise LookupError
    if recipe.sample is not None:  # read before
        repeats = -(-recipe.count // recipe.sample.numel())
        return recipe.sample.repeat(repeats)[: recipe.count].clone().untyped_storage()
    if not recipe.for_reads:
        return recipe.work_out(done)
    if recipe.draws:  # a size may depend on what was drawn as on any other number
        try:
            return recipe.work_out(done)
        except _FAILURES:
            pass
    if recipe.stand_in is None:
        raise LookupError
    return recipe.stand_in.work_out(done)


def _real(value: Any, done: dict[_Recipe, torch.UntypedStorage]) -> Any:
    if isinstance(value, _View):
        return value.on(_worked_out(value.recipe, done))
    if isinstance(value, list):
        return [_real(item, done) for item in value]
    if isinstance(value, dict):
        return {name: _CPU if name == "device" else _real(item, done) for name, item in value.items()}
    return value


# -- reads: every element, or a sample --------------------------------------------------------------------------


def _prepare(recipe: _Recipe) -> None:
    """Work a recipe out for a read, and all that goes into it."""
    if recipe.cached is None and recipe.sample is None:
        _prepare_all(recipe, in_full=_cost(recipe, set()) <= READ_LIMIT)


def _begin_again(recipe: _Recipe) -> None:
    """A chain has become long: its contents are worked out now, and what follows starts from them."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes(), one_thread():
        _prepare(recipe)
    recipe.depth = 0


def _cost(recipe: _Recipe, counted: set[_Recipe]) -> int:
    """Elements to be worked out."""
    if recipe in counted or recipe.cached is not None:
        return 0
    counted.add(recipe)
    cost = recipe.work
    if recipe.sample is None:
        for view in recipe.views():
            cost += _cost(view.recipe, counted)
            if cost > READ_LIMIT:
                break
    return cost


def _prepare_all(recipe: _Recipe, *, in_full: bool) -> None:
    if recipe.cached is not None or recipe.sample is not None:
        return
    views = list(recipe.views())
    for view in views:
        _prepare_all(view.recipe, in_full=in_full)
    if isinstance(recipe, _Layer):
        whole = recipe.dtype.is_floating_point and 1 < recipe.count <= (READ_LIMIT if in_full else _SMALL)
    else:
        whole = recipe.count <= READ_LIMIT and all(view.recipe.cached is not None for view in views)
    try:
        elements = _all_elements(recipe) if whole else recipe.sampled()
        if views and recipe.made_up and _is_new_infinity(recipe, elements, views):
            elements = elements.nan_to_num(1.0, 1.0, 1.0)
    except _FAILURES:
        elements = _Layer(recipe.dtype, recipe.count * recipe.dtype.itemsize, recipe.seed).sampled()
        recipe.made_up = True
        whole = False
    if not whole and recipe.count <= _SMALL:
        elements = elements.repeat(-(-recipe.count // max(elements.numel(), 1)))[: recipe.count].clone()
        whole = True
    if whole:
        recipe.cached = elements.untyped_storage()
    else:
        recipe.sample = elements


def _all_elements(recipe: _Recipe) -> torch.Tensor:
    elements: Any = torch.empty(0, dtype=recipe.dtype, device="cpu")
    return elements.set_(recipe.work_out({}), 0, (recipe.count,), (1,))  # type: ignore[no-any-return]


def _is_new_infinity(recipe: _Recipe, elements: torch.Tensor, views: list[_View]) -> bool:
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
    elif not isinstance(value, _View):
        yield value


def _sampled(value: Any) -> Any:
    if isinstance(value, _View):
        return value.sampled()
    if isinstance(value, torch.Tensor):
        return samples.Sampled(samples.take(value), value.size())
    if isinstance(value, list):
        return [_sampled(item) for item in value]
    if isinstance(value, dict):
        return {name: _CPU if name == "device" else _sampled(item) for name, item in value.items()}
    return value


def given(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Later reads of a tensor see what was given for it, where it is all of its storage."""
    block = block_of(tensor)
    if block is not None and tensor.is_contiguous() and content.nbytes == block.nbytes:
        storage = content.clone().untyped_storage()
        if block.values is not None:
            block.values = storage
        else:
            block.recipe = _Known(storage)


class Guesses:
    """Notes recipes while a forward pass runs, and works contents out when they are needed."""

    def __init__(self, position: Position, engine_is_running: Callable[[], bool]) -> None:
        self._position = position
        self._engine_is_running = engine_is_running
        self._origins = Origins(position.ledger)
        self._seeds: dict[tuple[Any, ...], int] = {}
        """Seeds of this step's layers, by what they were made of."""
        self._ops: dict[int, _Op | None] = {}
        """Those that have a recipe, by the op's address: the dispatcher keeps every op that it met."""
        self._reshapes: dict[int, bool] = {}
        self._counted = self._uncounted = self._of_step = 0
        """Seeds that were given out in this step: to layers on which a size depends, and to all else."""
        self._for_reads = False
        self.made_up = False
        """Whether random numbers went into the contents worked out last; otherwise they are exact."""

    # -- noting recipes -------------------------------------------------------------------------------------

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Called after an op that makes new tensors."""
        self._origins.note(func, args, kwargs, out)
        if self._position.backward_depth and self._engine_is_running():
            return
        op = self._op(func)
        if op is None:
            return
        if op.name == "_foreach_norm":
            self._note_norms(args, kwargs, out)
            return
        outs = out if isinstance(out, (list, tuple)) else (out,)
        if not outs or not isinstance(outs[0], torch.Tensor):
            return
        work = small_algebra.work(op.name, args, out) if op.is_algebra else 0
        if work is None and op.name not in samples.RULES:
            self._note_success(op, outs)
            return
        fresh = []
        for index, tensor in enumerate(outs):
            block = _block_without_recipe(tensor, whole=not op.for_reads)
            if block is not None:
                fresh.append((index, tensor, block))
        if not fresh:
            return
        for_reads = op.for_reads or outs[0].numel() > LIMIT or work is None
        given = self._described(args, kwargs, for_reads=for_reads)
        if given is not None:
            seed = self._seed(counted=False)
            for index, tensor, block in fresh:
                block.recipe = recipe = _Result(func, given, index, tensor)
                recipe.seed = seed
                recipe.work += work or 0
                if op.draws:
                    recipe.draws = recipe.made_up = True

    def _note_success(self, op: _Op, outs: Sequence[Any]) -> None:
        """A factorisation that is not worked out is taken to succeed: its `info` is 0."""
        for place in op.info:
            block = _block_without_recipe(outs[place])
            if block is not None:
                block.recipe = _Known(torch.zeros(block.nbytes, dtype=torch.uint8, device="cpu").untyped_storage())
                block.recipe.made_up = True

    def _note_norms(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        norm = torch.ops.aten.linalg_vector_norm.default
        order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
        for tensor, made in zip(args[0], out, strict=True):
            block = _block_without_recipe(made)
            given = None if block is None else self._described((tensor, order), {}, for_reads=True)
            if block is not None and given is not None:
                block.recipe = _Result(norm, given, 0, made)

    def note_written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called after an op that wrote into its first argument."""
        target = args[0] if args else None
        block = block_of(target) if isinstance(target, torch.Tensor) and target.is_meta else None
        if block is None or target is None:
            return
        if self._is_reshape(func):
            return
        if not self._position.in_optimizer:
            self._origins.note(func, args, kwargs, target)
        if block.values is not None:
            block.recipe = None
            return
        before, block.recipe = block.recipe, None
        op = self._op(func)
        if op is None:
            return
        name, for_reads = op.name, op.for_reads
        large = target.numel() > LIMIT
        if large and (self._position.backward_depth or self._position.in_optimizer):
            return  # gradients and optimizer state: as good as made by a layer
        whole = target.numel() * target.element_size() == block.nbytes
        overwrites = name in _OVERWRITES or name in _RANDOM_WRITES
        start: _Recipe | int | None = block.nbytes if overwrites and whole else before
        if start is None:
            start = self._layer(target, block, counted=not for_reads and not large)
        block.recipe = start if isinstance(start, _Recipe) else before  # it may be among the arguments too
        given = self._described(args[1:], kwargs, for_reads=for_reads or large)
        block.recipe = None
        if given is None:
            return
        if isinstance(start, _Recipe) and start.for_reads:
            given.for_reads = given.for_reads or start.stand_in is None
        written = _Written(start, func, target, given, block)
        written.draws = name in _RANDOM_WRITES
        written.made_up = written.made_up or written.draws
        written.seed = self._seed(counted=False)
        if written.depth <= DEPTH:
            block.recipe = written

    def keep(self, block: Block) -> None:
        """Called before known values are given up because something unknown is written over a part of them."""
        if block.recipe is None and block.values is not None:
            block.recipe = _Known(block.values)

    def _op(self, func: Any) -> _Op | None:
        try:
            return self._ops[id(func)]
        except KeyError:
            op = self._ops[id(func)] = _op_with_recipe(func)
            return op

    def _is_reshape(self, func: Any) -> bool:
        known = self._reshapes.get(id(func))
        if known is None:
            known = self._reshapes[id(func)] = func._schema.name.removeprefix("aten::") in _RESHAPES
        return known

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, for_reads: bool) -> _Ingredients | None:
        self._for_reads = for_reads
        try:
            describe = self._describe
            described = [describe(arg) if isinstance(arg, _HOLDS_TENSORS) else arg for arg in args]
            named = {name: describe(value) for name, value in kwargs.items()} if kwargs else {}
        except LookupError:
            return None
        given = _Ingredients(described, named, self._for_reads)
        return given if given.depth <= DEPTH else None

    def _describe(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                if value.numel() > LIMIT or value.layout is not torch.strided:
                    raise LookupError
                if getattr(value.untyped_storage(), UNKNOWN_CONTENT, False):
                    self._for_reads = True
                return value
            block = block_of(value)
            if block is None:
                raise LookupError
            return _View(self._recipe_of(value, block), value)
        if isinstance(value, (list, tuple)):
            return [self._describe(item) for item in value]
        return value

    def _recipe_of(self, tensor: torch.Tensor, block: Block) -> _Recipe:
        recipe: _Recipe | None = block.recipe
        counted = not self._for_reads
        if recipe is None:
            values = block.values
            recipe = block.recipe = _Known(values) if values is not None else self._layer(tensor, block, counted)
        elif counted and recipe.for_reads:
            if recipe.stand_in is None and _can_be_worked_out(tensor, block):
                recipe.stand_in = self._layer(tensor, block, counted)
        elif counted and isinstance(recipe, _Layer) and not recipe.counted:
            recipe.seed, recipe.counted = self._seed_of(block, counted), True
        if recipe.for_reads and recipe.stand_in is None:
            self._for_reads = True
        if recipe.depth >= DEPTH:
            if self._for_reads or not recipe.dtype.is_floating_point or _cost(recipe, set()) <= READ_LIMIT:
                _begin_again(recipe)
            else:
                recipe = block.recipe = self._layer(tensor, block, counted)
        return recipe

    def _layer(self, tensor: torch.Tensor, block: Block, counted: bool) -> _Layer:
        counted = counted and _can_be_worked_out(tensor, block)
        spread = GRADIENT_SPREAD if self._position.is_of_backward(block.block_id) else SPREAD
        layer = _Layer(tensor.dtype, block.nbytes, self._seed_of(block, counted), counted=counted, spread=spread)
        layer.for_reads = not _can_be_worked_out(tensor, block)
        return layer

    def _seed_of(self, block: Block, counted: bool) -> int:
        """The same for a layer that is evaluated again on the same data."""
        self._begin_step()
        if block.origin is None:
            return self._seed(counted)
        key = (counted, block.nbytes, block.origin)
        seed = self._seeds.get(key)
        if seed is None:
            seed = self._seeds[key] = self._seed(counted)
        return seed

    def _begin_step(self) -> None:
        # Each step's layers compute the same: what is asked of them then does not change from step to step.
        if self._of_step != self._position.steps_done:
            self._counted, self._uncounted, self._of_step = 0, 0, self._position.steps_done
            self._seeds.clear()
            self._origins.begin_step()

    def _seed(self, counted: bool) -> int:
        self._begin_step()
        if counted:
            self._counted += 1
            return self._counted
        self._uncounted += 1
        return _UNCOUNTED + self._uncounted

    # -- working contents out -------------------------------------------------------------------------------

    def contents(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A CPU tensor as plausible as can be; None where nothing is known of how it was made."""
        guessed = self.arguments((tensor,), {})
        return None if guessed is None else guessed[0][0]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
        """An op's arguments as CPU tensors; None where one cannot be worked out."""
        given = self._described(args, kwargs, for_reads=False)
        if given is None or given.for_reads:
            return None
        self.made_up = given.made_up
        done: dict[_Recipe, torch.UntypedStorage] = {}
        try:
            with one_thread():
                return _real(given.args, done), _real(given.kwargs, done)
        except _FAILURES:
            return None

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a program is told that reads a tensor: a CPU tensor; None for one that is not of the virtual card."""
        given = self._described((tensor,), {}, for_reads=True)
        if given is None:
            return None
        view = given.args[0]
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            if not isinstance(view, _View):
                return tensor
            with one_thread():
                _prepare(view.recipe)
            self.made_up = view.recipe.made_up
            return view.read()


class _Op(NamedTuple):
    """An op that has a recipe, by its name without namespace."""

    name: str
    for_reads: bool
    """The recipe serves reads alone."""
    is_algebra: bool
    """It is worked out where it costs little."""
    draws: bool
    """It draws random numbers."""
    info: tuple[int, ...]
    """Places of those outputs that say whether it succeeded."""


def _op_with_recipe(func: Any) -> _Op | None:
    name = func._schema.name
    plain = name.removeprefix("aten::")
    if not name.startswith("aten::"):
        return None
    if plain in _SIMPLE or plain.removesuffix("_") in _SIMPLE or plain in small_algebra.OPS:
        for_reads = False
    elif plain == "_foreach_norm" or plain in _RANDOM_WRITES or samples.has_rule(func, plain):
        for_reads = True
    else:
        return None
    info = tuple(place for place, returned in enumerate(func._schema.returns) if returned.name == "info")
    return _Op(plain, for_reads, plain in small_algebra.OPS, torch.Tag.nondeterministic_seeded in func.tags, info)


def _can_be_worked_out(tensor: torch.Tensor, block: Block) -> bool:
    """Whether the numbers of a layer can be computed, where a size depends on them."""
    return tensor.dtype.is_floating_point and block.nbytes <= LIMIT * tensor.element_size()


_NOWHERE = _Recipe(0, torch.uint8, 0)


def _views(value: Any) -> Iterator[_View]:
    if isinstance(value, _View):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _views(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _views(item)


def _block_without_recipe(tensor: Any, whole: bool = True) -> Block | None:
    """`whole`: only where nothing else is in it. The kernels of a few losses return a scalar at the beginning of what
    was a larger tensor."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_meta or tensor.layout is not torch.strided:
        return None
    block: Block | None = tensor.untyped_storage().__dict__.get(ATTRIBUTE)
    if block is None or block.values is not None or block.recipe is not None:
        return None
    fills = tensor.numel() * tensor.element_size() == block.nbytes
    return block if fills or not (whole or tensor.storage_offset()) else None
