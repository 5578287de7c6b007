"""Which calls first make the driver take memory for kernels: see vramcast.allocator.driver_events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vramcast.allocator.driver_events import FIRST_KERNEL, NORM, RANDOM_NUMBERS
from vramcast.card.dispatch.storages import is_virtual_gpu
from vramcast.card.ops.copies import needs_kernel

if TYPE_CHECKING:
    from vramcast.card.dispatch.ledger import Ledger

_MAKES_ROOM = frozenset({
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::set_", "aten::resize_", "aten::record_stream",
})  # fmt: skip
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::clone"})
_RANDOM = frozenset({
    "aten::uniform_", "aten::normal_", "aten::random_", "aten::bernoulli_", "aten::exponential_", "aten::rand",
    "aten::randn", "aten::randint", "aten::rand_like", "aten::randn_like", "aten::randint_like",
})  # fmt: skip
_NORMS = frozenset({"aten::norm", "aten::linalg_vector_norm"})


class FirstCalls:
    """Told every call until each kind has been seen."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._kernel = self._random = False
        self.passed: set[int] = set()
        """Ops that show nothing more, by address: the dispatcher keeps every op that it met."""
        self.awaited = True
        """There is something left to see."""

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        name = func._schema.name
        norm = name in _NORMS
        if self._kernel and not norm:
            self.passed.add(id(func))
            return
        if not runs_kernel(func, args, kwargs, out):
            return
        if name in _RANDOM:
            if not self._random:
                self._random = True
                self._ledger.driver_event(RANDOM_NUMBERS)
            return
        if not self._kernel:
            self._kernel = True
            self._ledger.driver_event(FIRST_KERNEL)
        if norm:
            self.awaited = False
            self._ledger.driver_event(NORM)


def runs_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> bool:
    """Whether the card computes something: not where it makes room, looks at memory in another way, or moves it."""
    name = func._schema.name
    target = _tensor(out)
    if target is None and args:
        target = _tensor(args[0])  # foreach ops that work in place return nothing
    if target is None or name in _MAKES_ROOM or is_view(func):
        return False
    if name in _COPIES:
        source = args[0] if target is not args[0] else args[1]
        return needs_kernel(target, source, bool(kwargs.get("non_blocking")))
    return is_virtual_gpu(target)


def is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _tensor(value: Any) -> torch.Tensor | None:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, torch.Tensor) else None
