"""Rules for ops whose outputs or scratch memory on CUDA differ from what a meta tensor shows.

A rule is a small function registered for one or more ops. It gets a `Call` and returns the op's outputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from vramcast.card.dispatch.known_calls import KnownCall
    from vramcast.card.dispatch.modes import DispatchMode
    from vramcast.gpus import GpuSpec

Kernel = Callable[["Call"], Any]

KERNELS: dict[str, Kernel] = {}


def kernel(*names: str) -> Callable[[Kernel], Kernel]:
    """Register a rule for ops given as "aten::mm" (all overloads) or "aten::add.Tensor"."""

    def register(function: Kernel) -> Kernel:
        for name in names:
            KERNELS[name] = function
        return function

    return register


def kernel_for(op: Any) -> Kernel | None:
    """The rule for an op; one for the exact overload goes first. With `out=` it is that of the op without."""
    name = op._schema.name
    overload = op._schema.overload_name or "default"
    rule = KERNELS.get(f"{name}.{overload}") or KERNELS.get(name)
    if rule is None and any(argument.is_out for argument in op._schema.arguments):
        plain = _without_outs(op)
        return None if plain is None else kernel_for(plain)
    return rule


def _without_outs(op: Any) -> Any:
    """The overload that takes the same arguments and makes its results itself."""
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
    packet = op.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        if [(a.name, str(a.type)) for a in overload._schema.arguments] == wanted:
            return overload
    return None


_META = torch.device("meta")
_NONE = object()
_PLACES: dict[tuple[int, str], tuple[int, Any, Any]] = {}
"""By the op's address and argument, with the op, so that its address stays its own; to look through a schema takes
longer than many a rule."""


def _place(schema: Any, name: str) -> tuple[int, Any]:
    """Where an argument is among all, and its default."""
    for position, argument in enumerate(schema.arguments):
        if argument.name == name:
            return position, argument.default_value if argument.has_default_value() else _NONE
    return sys.maxsize, _NONE


class Call:
    """One call of an op on the virtual card, and what a rule may do with it."""

    __slots__ = ("args", "device", "func", "known", "kwargs", "mode")

    def __init__(
        self,
        mode: DispatchMode,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: int,
        known: KnownCall | None = None,
    ) -> None:
        self.mode = mode
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.device = device
        self.known = known

    @property
    def gpu(self) -> GpuSpec:
        return self.mode.machine.gpu  # type: ignore[no-any-return]

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the op's schema."""
        if name in self.kwargs:
            return self.kwargs[name]
        func = self.func
        place = _PLACES.get((id(func), name))
        if place is None:
            place = _PLACES[id(func), name] = (*_place(func._schema, name), func)
        position, preset, _ = place
        if position < len(self.args):
            return self.args[position]
        return default if preset is _NONE else preset

    def run(self) -> Any:
        """The op's own meta kernel, its new storages booked, known values carried on."""
        return self.mode.make(self.func, self.args, self.kwargs, self.device, self.known)

    def once(self, work_out: Callable[..., Any], *values: Any) -> Any:
        """What a rule works out from sizes, strides, dtypes and plain values among the arguments, and from nothing
        else: once for all calls that are alike in these."""
        known = self.known
        if known is None or not known.exact:
            return work_out(*values)
        if known.fact is None:
            known.fact = (work_out(*values),)
        return known.fact[0]

    def empty(self, size: Sequence[int], dtype: torch.dtype, stride: Sequence[int] | None = None) -> torch.Tensor:
        """A new booked tensor."""
        if stride is None:
            out = torch.empty(size, dtype=dtype, device=_META)
        else:
            out = torch.empty_strided(size, stride, dtype=dtype, device=_META)
        self.mode.ledger.book(out.untyped_storage(), self.device, out)
        return out

    def scratch(self, *sizes: int) -> None:
        """Memory taken inside the op and given back before it returns."""
        if self.device == 0:
            self.mode.ledger.transient([int(s) for s in sizes if s > 0])

    def unknown_read(self, what: str, assumed: str, *, decides_sizes: bool = False) -> None:
        """The program asked for a value that only a real run would have."""
        self.mode.machine.note_unknown_read(what, assumed, decides_sizes=decides_sizes)


class OutCall(Call):
    """A call with `out=`. The rule is the op's own: what it makes of the size and dtype of a given tensor is that
    tensor, everything else is memory of the op."""

    __slots__ = ("_outs", "_sized", "_untaken")

    def __init__(
        self,
        mode: DispatchMode,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: int,
        outs: list[torch.Tensor],
        *,
        sized: bool,
    ) -> None:
        """`sized`: the outs have the sizes of the results already."""
        super().__init__(mode, func, args, kwargs, device)
        self._outs = outs
        self._untaken = list(outs)
        self._sized = sized

    def run(self) -> Any:
        if not self._sized:
            raise NotImplementedError
        self._untaken = []
        return self._outs[0] if len(self._outs) == 1 else tuple(self._outs)

    def empty(self, size: Sequence[int], dtype: torch.dtype, stride: Sequence[int] | None = None) -> torch.Tensor:
        for position, out in enumerate(self._untaken):
            if out.dtype == dtype and (not self._sized or out.size() == torch.Size(size)):
                del self._untaken[position]
                self._resize(out, size)
                return out
        return super().empty(size, dtype, stride)

    def finish(self, results: Any) -> None:
        """Give each out the size of its result."""
        made = results if isinstance(results, (list, tuple)) else (results,)
        for out, result in zip(self._outs, made, strict=False):
            if isinstance(result, torch.Tensor):
                self._resize(out, result.size())

    def _resize(self, out: torch.Tensor, size: Sequence[int]) -> None:
        if out.size() != torch.Size(size):
            torch.ops.aten.resize_.default(out, list(size))
        self.mode.adopt_tensor(out, self.device)
