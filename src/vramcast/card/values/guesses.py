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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from vramcast.card.dispatch.storages import ATTRIBUTE, UNKNOWN_CONTENT, Block, block_of, known_content
from vramcast.card.values import samples, small_algebra
from vramcast.card.values.biases import PLACES, Biases, Content
from vramcast.card.values.known_values import one_thread
from vramcast.card.values.later import Waiting
from vramcast.card.values.origins import Origins
from vramcast.card.values.recipe_reads import READ_LIMIT, begin_again, cost, prepare
from vramcast.card.values.recipes import (
    LIMIT,
    SPREAD,
    Ingredients,
    Known,
    Layer,
    Recipe,
    Result,
    View,
    Written,
    real,
)
from vramcast.card.values.working_out import FAILURES, CannotWorkOut

if TYPE_CHECKING:
    from vramcast.card.dispatch.known_calls import KnownCall
    from vramcast.card.dispatch.position import Position

DEPTH = 150
"""Longest chain of recipes; beyond it a tensor counts as made by a layer."""
GRADIENT_SPREAD = 1e-3
"""Standard deviation of gradients: a loss is a mean over many elements, and so small in each of them that the norm of
all is about one."""
_UNCOUNTED = 1 << 32
_HOLDS_TENSORS = (torch.Tensor, list, tuple)
_OVERWRITES = frozenset({"copy_", "fill_", "zero_"})
_RANDOM_WRITES = frozenset({"bernoulli_", "exponential_", "log_normal_", "normal_", "random_", "uniform_"})
_RESHAPES = frozenset(
    {"as_strided_", "detach_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
)
"""They change the shape of the tensor they are given, and nothing that it holds."""
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


def given(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Later reads of a tensor see what was given for it, where it is all of its storage."""
    block = block_of(tensor)
    if block is not None and tensor.is_contiguous() and content.nbytes == block.nbytes:
        storage = content.clone().untyped_storage()
        if block.values is not None:
            block.values = storage
        else:
            block.recipe = Known(storage)


class Guesses:
    """Notes recipes while a forward pass runs, and works contents out when they are needed."""

    def __init__(self, position: Position, engine_is_running: Callable[[], bool]) -> None:
        self._position = position
        self._engine_is_running = engine_is_running
        self._origins = Origins(position.ledger)
        self._biases = Biases(_content_of)
        self._seeds: dict[tuple[Any, ...], int] = {}
        """Seeds of this step's layers, by what they were made of."""
        self._ops: dict[int, _Op | None] = {}
        """Those that have a recipe, by the op's address: the dispatcher keeps every op that it met."""
        self._reshapes: dict[int, bool] = {}
        self._counted = self._uncounted = self._of_step = 0
        """Seeds that were given out in this step: to layers on which a size depends, and to all else."""
        self._for_reads = False
        self.waiting = Waiting(self)
        self.made_up = False
        """Whether random numbers went into the contents worked out last; otherwise they are exact."""

    # -- noting recipes -------------------------------------------------------------------------------------

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, known: KnownCall | None = None
    ) -> None:
        """Called after an op that makes new tensors."""
        self._origins.note(func, args, kwargs, out, known)
        if self._position.backward_depth and self._engine_is_running():
            return
        op = self._op(func)
        if op is None:
            if func in PLACES:
                self._biases.note(args[PLACES[func]], out)
            return
        if op.name == "_foreach_norm":
            self._note_norms(args, kwargs, out)
            return
        outs = out if isinstance(out, (list, tuple)) else (out,)
        if not outs or not isinstance(outs[0], torch.Tensor):
            return
        work = _algebra(op.name, args, out, known) if op.is_algebra else 0
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
                block.recipe = recipe = Result(func, given, index, tensor)
                recipe.seed = seed
                recipe.work += work or 0
                if op.draws:
                    recipe.draws = recipe.made_up = True

    def _note_success(self, op: _Op, outs: Sequence[Any]) -> None:
        """A factorisation that is not worked out is taken to succeed: its `info` is 0."""
        for place in op.info:
            block = _block_without_recipe(outs[place])
            if block is not None:
                block.recipe = Known(torch.zeros(block.nbytes, dtype=torch.uint8, device="cpu").untyped_storage())
                block.recipe.made_up = True

    def _note_norms(self, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        norm = torch.ops.aten.linalg_vector_norm.default
        order = args[1] if len(args) > 1 else kwargs.get("ord", 2)
        for tensor, made in zip(args[0], out, strict=True):
            block = _block_without_recipe(made)
            given = None if block is None else self._described((tensor, order), {}, for_reads=True)
            if block is not None and given is not None:
                block.recipe = Result(norm, given, 0, made)

    def note_written(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None = None
    ) -> None:
        """Called after an op that wrote into its first argument."""
        target = args[0] if args else None
        block = block_of(target) if isinstance(target, torch.Tensor) and target.is_meta else None
        if block is None or target is None:
            return
        if self._is_reshape(func):
            return
        if not self._position.in_optimizer:
            self._origins.note(func, args, kwargs, target, known)
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
        start: Recipe | int | None = block.nbytes if overwrites and whole else before
        if start is None:
            start = self._layer(target, block, counted=not for_reads and not large)
        block.recipe = start if isinstance(start, Recipe) else before  # it may be among the arguments too
        given = self._described(args[1:], kwargs, for_reads=for_reads or large)
        block.recipe = None
        if given is None:
            return
        if isinstance(start, Recipe) and start.for_reads:
            given.for_reads = given.for_reads or start.stand_in is None
        written = Written(start, func, target, given, block)
        written.draws = name in _RANDOM_WRITES
        written.made_up = written.made_up or written.draws
        written.seed = self._seed(counted=False)
        if written.depth <= DEPTH:
            block.recipe = written

    def note_overwritten(self, block: Block, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before the unknown result of a functional op takes the place of its first argument, which is all that
        is in the block."""
        target = args[0]
        given = self._described(args, kwargs, for_reads=True) if self._op(func) and target.numel() <= LIMIT else None
        block.values = None
        block.recipe = None if given is None else Result(func, given, 0, target)

    def keep(self, block: Block) -> None:
        """Called before known values are given up because something unknown is written over a part of them."""
        content = known_content(block) if block.recipe is None else None
        if content is not None:
            block.recipe = Known(content)

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

    def _described(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, for_reads: bool) -> Ingredients | None:
        self._for_reads = for_reads
        try:
            describe = self._describe
            described = [describe(arg) if isinstance(arg, _HOLDS_TENSORS) else arg for arg in args]
            named = {name: describe(value) for name, value in kwargs.items()} if kwargs else {}
        except CannotWorkOut:
            return None
        given = Ingredients(described, named, self._for_reads)
        return given if given.depth <= DEPTH else None

    def _describe(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                if value.numel() > LIMIT or value.layout is not torch.strided:
                    raise CannotWorkOut
                if getattr(value.untyped_storage(), UNKNOWN_CONTENT, False):
                    self._for_reads = True
                return value
            strided = value.layout is torch.strided
            block: Block | None = value.untyped_storage().__dict__.get(ATTRIBUTE) if strided else None
            if block is None:
                raise CannotWorkOut
            return View(self._recipe_of(value, block), value)
        if isinstance(value, (list, tuple)):
            return [self._describe(item) for item in value]
        return value

    def _recipe_of(self, tensor: torch.Tensor, block: Block) -> Recipe:
        recipe: Recipe | None = block.recipe
        counted = not self._for_reads
        if recipe is None:
            content = known_content(block)
            recipe = block.recipe = Known(content) if content is not None else self._layer(tensor, block, counted)
        elif counted and recipe.for_reads:
            if recipe.stand_in is None and _can_be_worked_out(tensor, block):
                recipe.stand_in = self._layer(tensor, block, counted)
        elif counted and isinstance(recipe, Layer) and not recipe.counted:
            recipe.seed, recipe.counted = self._seed_of(block, counted), True
        if recipe.for_reads and recipe.stand_in is None:
            self._for_reads = True
        if recipe.depth >= DEPTH:
            if self._for_reads or not recipe.dtype.is_floating_point or cost(recipe, set()) <= READ_LIMIT:
                begin_again(recipe)
            else:
                recipe = block.recipe = self._layer(tensor, block, counted)
        return recipe

    def _layer(self, tensor: torch.Tensor, block: Block, counted: bool) -> Layer:
        counted = counted and _can_be_worked_out(tensor, block)
        spread = GRADIENT_SPREAD if self._position.is_of_backward(block.block_id) else SPREAD
        layer = Layer(tensor.dtype, block.nbytes, self._seed_of(block, counted), counted=counted, spread=spread)
        layer.shift = block.shift
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

    def described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ingredients | None:
        """How an op's arguments came about; None where one cannot be worked out."""
        given = self._described(args, kwargs, for_reads=False)
        return None if given is None or given.for_reads else given

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
        """An op's arguments as CPU tensors; None where one cannot be worked out."""
        given = self.described(args, kwargs)
        if given is None:
            return None
        self.made_up = given.made_up
        done: dict[Recipe, torch.UntypedStorage] = {}
        try:
            with one_thread():
                return real(given.args, done), real(given.kwargs, done)
        except FAILURES:
            return None

    def read(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a program is told that reads a tensor: a CPU tensor; None for one that is not of the virtual card."""
        given = self._described((tensor,), {}, for_reads=True)
        if given is None:
            return None
        view = given.args[0]
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            if not isinstance(view, View):
                return tensor
            with one_thread():
                prepare(view.recipe)
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


def _content_of(tensor: torch.Tensor, block: Block) -> Content | None:
    """The content as it is now, for later; None where nothing is known of how it came about."""
    recipe: Recipe | None = block.recipe
    known = known_content(block) if recipe is None else None
    if known is not None:
        recipe = Known(known.clone())
    if recipe is None:
        return None
    view = View(recipe, tensor)

    def content() -> torch.Tensor | None:
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes(), one_thread():
            try:
                prepare(view.recipe)
                return view.read()
            except FAILURES:
                return None

    return content


def _algebra(name: str, args: tuple[Any, ...], out: Any, known: KnownCall | None) -> int | None:
    """What the op costs, which follows from shapes: the same for all calls that are alike in these."""
    if known is None:
        return small_algebra.work(name, args, out)
    if known.work is None:
        known.work = (small_algebra.work(name, args, out),)
    return known.work[0]


def _can_be_worked_out(tensor: torch.Tensor, block: Block) -> bool:
    """Whether the numbers of a layer can be computed, where a size depends on them."""
    return tensor.dtype.is_floating_point and block.nbytes <= LIMIT * tensor.element_size()


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
