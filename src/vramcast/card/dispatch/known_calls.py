"""What is known of an op from its arguments' shapes: its number in the log, and the outputs it makes.

Many meta kernels are Python and cost a hundred microseconds; a network calls the same op with the same shapes
thousands of times. What a meta kernel can see makes the key: sizes, strides, dtypes, where tensors are and plain
values. On the hot path, so the key is made once for all that asks.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.card.dispatch.simple_outputs import SimpleOutputs
from vramcast.card.dispatch.storages import ATTRIBUTE
from vramcast.card.values.known_values import small

_Tensor = torch.Tensor
_strided = torch.strided
_META = torch.device("meta")
_default_dtype = torch.get_default_dtype
_PLAIN_KINDS = frozenset((bool, int, float))
_PLAIN = (bool, int, float, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)


class KnownCall:
    """An op with such arguments."""

    __slots__ = (
        "_func", "booked", "device", "exact", "fact", "in_place", "made", "number", "places", "without_contents",
        "work",
    )  # fmt: skip

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func = func
        """Kept, since the key has only its address."""
        self.exact = all(map(_is_exact, args)) and all(map(_is_exact, kwargs.values()))
        """The key says all of the arguments that a meta kernel can see."""
        self.places = _places(args, kwargs)
        """Where its tensors are among its arguments, if all of them are strided and without data; else None."""
        self.number: int | None = None
        """In the log of ops."""
        self.device: int | None = None
        """Where it runs, unless it is told."""
        self.made: Any = None
        """How to make its outputs, once it ran."""
        self.booked: tuple[int, int] | None = None
        """Bytes and shape (see Ledger.book_again) of the one tensor that it makes, once one was booked on the card."""
        self.without_contents = False
        """It makes a tensor so large that its contents are not carried, whatever its arguments hold."""
        self.fact: Any = None
        """What a rule has worked out from such arguments."""
        self.work: tuple[int | None] | None = None
        """What working out its contents costs (see small_algebra), once somebody asked."""
        self.in_place = False
        """It ran, and gave its first argument back."""


class KnownCalls:
    """One instance per virtual GPU."""

    def __init__(self) -> None:
        self._known: dict[Any, KnownCall] = {}
        self._never: set[int] = set()
        """Ops whose outputs are not simply new tensors."""
        self._writes_contents: dict[int, bool] = {}
        self._simple = SimpleOutputs()

    def of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KnownCall | None:
        """None where an argument has no shape yet (of a lazy module), or cannot be hashed."""
        try:
            # The default dtype decides where an op is told none.
            key: list[Any] = [id(func), _default_dtype()]
            for value in args:
                if isinstance(value, _Tensor) and value.is_meta and value.layout is _strided:  # as _key does, at once
                    block = value.untyped_storage().__dict__.get(ATTRIBUTE)
                    key += (value.shape, value.stride(), value.dtype, None if block is None else block.device)
                else:
                    key.append(_key(value))
            for name, value in kwargs.items():
                key += (name, _key(value))
            whole = tuple(key)
            known = self._known.get(whole)
        except (TypeError, RuntimeError):
            return None
        if known is None:
            known = self._known[whole] = KnownCall(func, args, kwargs)
        return known

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None = None) -> Any:
        """What `func` would return, made anew from memory where it ran on such arguments before. `known`: of just
        these, where somebody asked already."""
        if id(func) in self._never:
            return func(*args, **kwargs)
        if known is None:
            known = self.of(func, args, kwargs)
            if known is None:
                return func(*args, **kwargs)
        if known.made is not None:
            return _make(known.made)
        if not known.exact:
            return func(*args, **kwargs)
        simple = self._simple.known(func, args, kwargs)
        if simple is not None:
            known.made = (_Tensor, *simple)
            out = _make(known.made)
            known.without_contents = _without_contents(out)
            return out
        out = func(*args, **kwargs)
        known.made = _spec(out)
        known.without_contents = _without_contents(out)
        if known.made is None:
            self._never.add(id(func))
        else:
            self._simple.learn(func, args, kwargs, out)
        return out

    def run_in_place(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], known: KnownCall | None = None
    ) -> Any:
        """What `func` gives back, which is its first argument where it writes contents alone and was found to take such
        arguments."""
        simple = self._writes_contents.get(id(func))
        if simple is None:
            simple = self._writes_contents[id(func)] = _writes_contents(func)
        if simple and known is None:
            known = self.of(func, args, kwargs)
        if not simple or known is None:
            return func(*args, **kwargs)
        if known.in_place:
            return args[0]
        out = func(*args, **kwargs)
        known.in_place = known.exact and out is args[0]
        return out


def make_tensor(spec: Any) -> torch.Tensor:
    return torch.empty_strided(spec[1], spec[2], dtype=spec[3], device=_META)


def _writes_contents(func: Any) -> bool:
    """Whether an in-place op changes what is in its first argument, and nothing else: neither its size nor others."""
    written = [a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments]
    elementwise = torch.Tag.pointwise in func.tags or torch.Tag.nondeterministic_seeded in func.tags
    return elementwise and written[:1] == [True] and not any(written[1:]) and len(func._schema.returns) == 1


def _places(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    places = []
    for place, value in enumerate(args):
        if isinstance(value, _Tensor):
            if not value.is_meta or value.layout is not _strided:
                return None
            places.append(place)
        elif isinstance(value, (list, tuple)) and any(isinstance(item, (_Tensor, list, tuple)) for item in value):
            return None
    return None if any(isinstance(value, (_Tensor, list, tuple)) for value in kwargs.values()) else tuple(places)


def _key(value: Any) -> Any:
    if isinstance(value, _Tensor):
        if value.layout is not _strided:
            return value.shape, value.dtype, value.layout
        if not value.is_meta:
            return value.shape, value.stride(), value.dtype, value.device.type
        block = value.untyped_storage().__dict__.get(ATTRIBUTE)
        return value.shape, value.stride(), value.dtype, None if block is None else block.device
    if isinstance(value, (list, tuple)):
        kinds = tuple(map(type, value))
        return (kinds, tuple(value)) if _PLAIN_KINDS.issuperset(kinds) else tuple([_key(v) for v in value])
    # Only the class of a storage or a generator: a reference kept here would keep memory alive.
    return (value.__class__, value) if isinstance(value, _PLAIN) else value.__class__


def _is_exact(value: Any) -> bool:
    """Whether the key says all of it."""
    if isinstance(value, _Tensor):
        return value.layout is _strided and not value.dtype.is_complex and not value.is_nested
    if isinstance(value, (list, tuple)):
        return all(map(_is_exact, value))
    return value is None or (isinstance(value, _PLAIN) and not isinstance(value, complex))


def _spec(out: Any) -> Any:
    """How to make such outputs again; None if they are not simply new tensors."""
    if isinstance(out, _Tensor):
        if not out.is_meta or out.layout is not _strided or out.dtype.is_complex:
            return None
        storage = out.untyped_storage()
        whole = storage.nbytes() == _extent(out) * out.element_size() and out.storage_offset() == 0
        if not whole or ATTRIBUTE in storage.__dict__:
            return None
        return (_Tensor, tuple(out.shape), out.stride(), out.dtype)
    if isinstance(out, (list, tuple)):
        parts = [_spec(item) for item in out]
        return None if any(p is None for p in parts) else (type(out) if type(out) is list else tuple, parts)
    if out is None or isinstance(out, _PLAIN):
        return (None, out)
    return None


def _without_contents(out: Any) -> bool:
    outs = out if isinstance(out, (list, tuple)) else (out,)
    return any(isinstance(o, _Tensor) and o.is_floating_point() and not small(o) for o in outs)


def _extent(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _make(spec: Any) -> Any:
    kind = spec[0]
    if kind is _Tensor:
        return make_tensor(spec)
    if kind is None:
        return spec[1]
    return kind(_make(part) for part in spec[1])
