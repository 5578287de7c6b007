"""Contents that nobody has asked for yet.

What an argmax chooses among assumed numbers, the whole numbers that follow from it (buckets, an order, codes), and
large masks and positions are contents like any other, but a program seldom looks at them: mostly they only say which
rows are taken. So they are worked out where somebody asks.

The first call of each kind of op is worked out at once, which shows that the CPU can do it. So is an op that may refuse
what it is given, where that is known and not assumed: a card refuses it there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import ATTRIBUTE, GPU, Block
from vramcast.card.values.cpu_kernels import on_cpu
from vramcast.card.values.known_values import one_thread
from vramcast.card.values.recipes import Ingredients, Recipe, real
from vramcast.card.values.working_out import FAILURES, call

if TYPE_CHECKING:
    from vramcast.card.values.guesses import Guesses

_DEEPEST = 60
"""Longest chain of ops that waits: it is worked out by recursion."""
_LARGE = 1 << 10
"""Elements from which to work a content out takes longer than to note how."""
_TAKE_ANYTHING = frozenset({
    "aten::argsort", "aten::cat", "aten::clone", "aten::constant_pad_nd", "aten::cumsum", "aten::flip", "aten::repeat",
    "aten::roll", "aten::sort", "aten::stack", "aten::sum", "aten::_to_copy", "aten::tril", "aten::triu",
    "aten::_unsafe_view",
})  # fmt: skip
"""Beside elementwise ops: whatever numbers they are given, they do not fail."""
_Tensor = torch.Tensor


class Work:
    """An op that waits, and the contents of its outputs once it was worked out."""

    __slots__ = ("_done", "_func", "_given", "_otherwise", "_outs")

    def __init__(
        self,
        func: Any,
        given: Ingredients,
        outs: Sequence[torch.Tensor | None],
        otherwise: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        """`outs`: those of the op's outputs whose contents are wanted. `otherwise` makes them where the op cannot."""
        self._func = func
        self._given: Ingredients | None = given
        self._outs = [None if out is None else (out.size(), out.stride(), out.dtype) for out in outs]
        self._otherwise = otherwise
        self._done: list[torch.UntypedStorage | None] = []

    def content(self, place: int) -> torch.UntypedStorage | None:
        """None where it cannot be worked out."""
        if self._given is not None:
            given, self._given = self._given, None
            with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes(), one_thread():
                self._done = [self._laid_out(made, place) for place, made in enumerate(self._made(given))]
            self._func = self._otherwise = None
        return self._done[place] if place < len(self._done) else None

    def _made(self, given: Ingredients) -> Sequence[torch.Tensor]:
        done: dict[Recipe, torch.UntypedStorage] = {}
        try:
            made = call(on_cpu(self._func), real(given.args, done), real(given.kwargs, done))
        except FAILURES:
            return [] if self._otherwise is None else [self._otherwise()] * len(self._outs)
        return [one for one in (made if isinstance(made, (list, tuple)) else (made,)) if isinstance(one, _Tensor)]

    def _laid_out(self, made: torch.Tensor, place: int) -> torch.UntypedStorage | None:
        out = self._outs[place] if place < len(self._outs) else None
        if out is None or made.shape != out[0] or made.dtype != out[2]:
            return None
        content: torch.UntypedStorage = (
            torch.empty_strided(out[0], out[1], dtype=out[2], device="cpu").copy_(made).untyped_storage()
        )
        return content


class Later(Recipe):
    """The content of a storage that is worked out when it is asked for: stands in `Block.values` until then."""

    __slots__ = ("_content", "_place", "_work", "assumed")

    def __init__(self, work: Work, place: int, depth: int, nbytes: int, *, assumed: bool) -> None:
        """`assumed`: it follows from a choice by assumed numbers."""
        self._work: Work | None = None
        super().__init__(depth, torch.uint8, nbytes)
        self._work, self._place, self.assumed = work, place, assumed

    @property
    def cached(self) -> torch.UntypedStorage | None:
        if self._work is not None:
            work, self._work = self._work, None
            self._content, self.depth = work.content(self._place), 0
        return self._content

    @cached.setter
    def cached(self, content: torch.UntypedStorage | None) -> None:
        self._content = content


class Waiting:
    """Decides which ops wait. One instance per virtual GPU."""

    def __init__(self, guesses: Guesses) -> None:
        self._guesses = guesses
        self._known: set[tuple[Any, ...]] = set()
        """Kinds of calls that were worked out once."""
        self._take_anything: dict[int, bool] = {}
        """By the op's address: the dispatcher keeps every op that it met."""
        self.begun = False
        """Some content waits."""

    def put_off(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outs: Sequence[torch.Tensor]) -> bool:
        """Let contents wait that follow from known ones; False where they are worked out now. An op that draws random
        numbers has its turn among all that draw."""
        if not self.begun and outs[0].numel() < _LARGE:
            return False
        blocks = [_block(tensor) for tensor in _tensors((args, kwargs))]
        if not blocks or any(block is None or block.values is None for block in blocks):
            return False
        waiting = [block.values for block in blocks if block is not None and isinstance(block.values, Later)]
        assumed = any(content.assumed for content in waiting)
        if not assumed and not (self._takes_anything(func) and (waiting or outs[0].numel() >= _LARGE)):
            return False
        if torch.Tag.nondeterministic_seeded in func.tags or not self._was_done(func, args, kwargs):
            return False
        return self._wait(func, args, kwargs, outs, assumed=assumed) is not None

    def _takes_anything(self, func: Any) -> bool:
        known = self._take_anything.get(id(func))
        if known is None:
            known = torch.Tag.pointwise in func.tags or func._schema.name in _TAKE_ANYTHING
            self._take_anything[id(func)] = known
        return known

    def put_off_choice(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outs: Sequence[torch.Tensor | None],
        otherwise: Callable[[], torch.Tensor],
    ) -> bool | None:
        """Let the choice wait that an op makes by assumed numbers: whether these are made up; None where it is to be
        made now."""
        if torch.Tag.nondeterministic_seeded in func.tags or not self._was_done(func, args, kwargs):
            return None
        return self._wait(func, args, kwargs, outs, assumed=True, otherwise=otherwise)

    def _was_done(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        kind = (id(func), *map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
        if kind in self._known:
            return True
        self._known.add(kind)
        return False

    def _wait(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outs: Sequence[torch.Tensor | None],
        *,
        assumed: bool,
        otherwise: Callable[[], torch.Tensor] | None = None,
    ) -> bool | None:
        blocks = [None if out is None else _block(out) for out in outs]
        if any(block is None for block, out in zip(blocks, outs, strict=True) if out is not None):
            return None
        given = self._guesses.described(args, kwargs)
        if given is None or given.depth > _DEEPEST:
            return None
        self.begun = True
        work = Work(func, given, outs, otherwise)
        for place, block in enumerate(blocks):
            if block is not None:
                block.values = block.recipe = Later(work, place, given.depth, block.nbytes, assumed=assumed)
        return given.made_up


def _block(tensor: torch.Tensor) -> Block | None:
    """Of a tensor of the card that is all of its storage; what lies on the host may change unseen."""
    if not tensor.is_meta or tensor.layout is not torch.strided:
        return None
    block: Block | None = tensor.untyped_storage().__dict__.get(ATTRIBUTE)
    return block if block is not None and block.device == GPU else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, _Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _kind(value: Any) -> Any:
    if isinstance(value, _Tensor):
        return value.dtype
    return tuple(map(_kind, value)) if isinstance(value, (list, tuple)) else type(value)
