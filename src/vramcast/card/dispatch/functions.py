"""What a program does with devices: moves, factory functions, defaults. Everything that says "cuda" comes here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import prod
from mmap import mmap
from numbers import Integral
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils import _device as device_module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vramcast.card.device.one_card import CARD, check_ordinal
from vramcast.card.device.patches import CardGenerator
from vramcast.card.dispatch import host_ops, origins, peer_copies
from vramcast.card.dispatch.ledger import BUFFERS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS
from vramcast.card.dispatch.modes import REAL, DispatchMode
from vramcast.card.dispatch.peer_copies import card_of
from vramcast.card.dispatch.storages import (
    GPU,
    HOST,
    UNKNOWN_CONTENT,
    block_of,
    dense_parts,
    is_virtual_gpu,
    known_values,
)
from vramcast.card.values import reads
from vramcast.trace.host import PINNED
from vramcast.trace.schema import KINDS

CPU = torch.device("cpu")
META = torch.device("meta")

_MODEL_STATE = {WEIGHTS, GRADIENTS, OPTIMIZER_STATE, BUFFERS}

_WITHOUT_CONTENT = {torch.empty, torch.empty_like, torch.empty_strided}
_PYTHON_TYPES: dict[Any, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
"""What torch takes for a dtype, too."""
_LARGE_DRAW = 1 << 20
_APPLY = torch.nn.Module._apply.__code__
_FRAMES_TO_APPLY = 12
"""From a copy to the host outwards, where Module.to() asks for it."""
_BUILDING: ContextVar[bool] = ContextVar("building", default=False)

HANDLERS: dict[Any, Callable[..., Any]] = {}


def handles(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            HANDLERS[function] = handler
        return handler

    return register


class FunctionMode(TorchFunctionMode):
    """Sees each call of the Python API before arguments are parsed (a CPU build refuses "cuda" there)."""

    def __init__(self, dispatch: DispatchMode) -> None:
        super().__init__()
        self.dispatch = dispatch
        dispatch.functions = self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs or {})
        return self.call(func, args, kwargs) if kwargs else func(*args)

    origins.CALLS.add(__torch_function__.__code__)

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run a function that has no handler of its own."""
        if not kwargs:
            return func(*args)
        if kwargs.get("pin_memory"):
            return self.pinned(func, args, kwargs)
        if "device" in kwargs:
            return self.place(func, args, kwargs)
        if "generator" in kwargs:
            if args and isinstance(args[0], torch.Tensor):
                _check_generator(kwargs, "cuda" if is_virtual_gpu(args[0]) else args[0].device.type)
            if isinstance(kwargs["generator"], CardGenerator) or _is_virtual(args):
                kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
        return func(*args, **kwargs)

    def place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that was told where to put its result."""
        device = to_device(kwargs["device"])
        if device is not None:
            _check_generator(kwargs, device.type)
        if device is None or device.type == "cpu":
            return func(*args, **kwargs)
        if device.type == "meta":
            # Placed already, by a device context above us; or an op that a tensor subclass calls in backward, with the
            # device that torch's own code has seen below us: where its arguments are is where its result goes.
            if self.dispatch.target is not None or isinstance(func, torch._ops.OpOverload):
                return func(*args, **kwargs)
            target = REAL
        elif device.type == "cuda":
            self.dispatch.ledger.use_card(check_ordinal(device))
            target = GPU
            kwargs = {k: v for k, v in kwargs.items() if k not in ("generator", "pin_memory")}
            kwargs["device"] = META
            if func in _FROM_DATA:
                return self.from_data(func, args, kwargs, device)
        else:
            return func(*args, **kwargs)
        before, self.dispatch.target = self.dispatch.target, target
        try:
            return func(*args, **kwargs)
        finally:
            self.dispatch.target = before

    def pinned(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A factory function that was told to make pinned host memory. Programs read files of whole numbers into such a
        buffer by way of NumPy, so it has content until something unknown is written to it."""
        self.dispatch.machine.initialize()
        rest = {k: v for k, v in kwargs.items() if k not in ("generator", "pin_memory")}
        if func in _FROM_DATA:
            return func(*args, **rest)
        before, self.dispatch.target = self.dispatch.target, HOST
        try:
            with self.dispatch.ledger.made_on_host(PINNED):
                out = func(*args, **{**rest, "device": META})
        finally:
            self.dispatch.target = before
        if func in _WITHOUT_CONTENT:
            _give_zeros(out)
        return out

    def from_data(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> Any:
        """torch.tensor and its kin: the data is real, so make it on the host and move it."""
        kwargs["device"] = None
        source = args[0] if args else next(iter(kwargs.values()))
        if isinstance(source, torch.Tensor) and source.is_meta:
            return self.move(source, device, kwargs.get("dtype"))
        requires_grad = kwargs.pop("requires_grad", False)
        moved = self.move(func(*args, **kwargs), device, None)
        return moved.requires_grad_() if requires_grad else moved

    def move(
        self, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None, **options: Any
    ) -> torch.Tensor:
        """`tensor.to(device, dtype)` where the device really changes, else a plain conversion."""
        here = placement(tensor)
        if device.type == "cuda":
            card = check_ordinal(device)
            if here != GPU:
                self.dispatch.ledger.use_card(card)
                return self.copy(tensor, META, dtype, GPU, **options)
            if card != card_of(tensor):
                return peer_copies.to_card(self, tensor, card, dtype, **options)
        elif device.type == "cpu":
            if here == GPU:
                return self._to_host(tensor, dtype, **options)
        elif device.type == "meta" and not (here == REAL and tensor.is_meta):
            return self.copy(tensor, META, dtype, REAL, **options)
        options.pop("non_blocking", None)
        return tensor.to(dtype or tensor.dtype, **options)

    def read(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """The contents of a tensor without data, on the CPU."""
        with torch._C.DisableTorchFunction():
            return reads.read(self.dispatch.machine, tensor, what)

    def _to_host(self, tensor: torch.Tensor, dtype: torch.dtype | None, **options: Any) -> torch.Tensor:
        block = block_of(tensor)
        ledger = self.dispatch.ledger
        kind = None if block is None or block.block_id < 0 else ledger.builder.kind_of(block.block_id)
        unread = known_values(tensor) is None or ledger.host_kind is not None or _moves_with_module(tensor)
        if kind in _MODEL_STATE and unread:
            # Weights and what belongs to them stay without data: nobody reads them, and a model need not fit in RAM.
            with ledger.made_on_host(kind=KINDS[kind] if ledger.host_kind is None else None):
                return self.copy(tensor, CPU, dtype, None, **options)
        out = self.copy(tensor, CPU, dtype, None, **options)
        if not out.is_meta and known_values(tensor) is None and out.layout is torch.strided:
            setattr(out.untyped_storage(), UNKNOWN_CONTENT, True)
        return out

    def copy(
        self, tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None, target: int | None, **options: Any
    ) -> torch.Tensor:
        """A copy that is booked at `target`; on the card that is in use where that is the GPU."""
        if tensor.layout is not torch.strided:
            self.dispatch.ledger.sparse_seen = True
        if not options.get("non_blocking"):
            self.dispatch.ledger.wait_for_stream()
        before, self.dispatch.target = self.dispatch.target, target
        try:
            memory_format = options.get("memory_format")
            return torch.ops.aten._to_copy.default(  # type: ignore[no-any-return]
                tensor,
                dtype=dtype or tensor.dtype,
                device=device,
                **({"memory_format": memory_format} if memory_format is not None else {}),
                **({"non_blocking": True} if options.get("non_blocking") else {}),
            )
        finally:
            self.dispatch.target = before


def _check_generator(kwargs: dict[str, Any], expected: str) -> None:
    """Refuse a generator of another device in the words of check_generator (ATen/core/Generator.h)."""
    generator = kwargs.get("generator")
    if isinstance(generator, torch.Generator) and expected in ("cpu", "cuda") and generator.device.type != expected:
        raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{generator.device.type}'")


def _moves_with_module(tensor: torch.Tensor) -> bool:
    """Whether Module.cpu() or .to() moves a parameter or its gradient. It writes into the parameter that is there where
    both are of one kind, as all are on a card: a known content makes no tensor of another kind."""
    frame = sys._getframe(2)
    for _ in range(_FRAMES_TO_APPLY):
        if frame.f_code is _APPLY:
            return any(frame.f_locals.get(name) is tensor for name in ("param", "param_grad"))
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _is_virtual(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and args[0].is_meta


def to_device(value: Any) -> torch.device | None:
    if value is None or isinstance(value, torch.device):
        return value
    if isinstance(value, int):
        return torch.device("cuda", value)
    return torch.device(value)


def placement(tensor: torch.Tensor) -> int:
    if not tensor.is_meta:
        return REAL
    parts = dense_parts(tensor)
    block = block_of(parts[0]) if parts else None
    if block is None and is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return placement(getattr(tensor, names[0])) if names else REAL
    return REAL if block is None else block.device


def device_of(tensor: torch.Tensor) -> torch.device:
    where = placement(tensor)
    return torch.device("cuda", card_of(tensor)) if where == GPU else CPU if where == HOST else tensor.device


def _give_zeros(tensor: torch.Tensor) -> None:
    """Memory is taken only where it is written to. A buffer larger than this machine allows stays without content."""
    block = block_of(tensor)
    if block is None or block.values is not None or not block.nbytes or tensor.is_floating_point():
        return
    with suppress(OSError):
        block.values = torch.frombuffer(mmap(-1, block.nbytes), dtype=torch.uint8).untyped_storage()


_FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor}


# -- moves ------------------------------------------------------------------------------------------------------


@handles(torch.Tensor.to)
def _to(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    if isinstance(tensor, UninitializedTensorMixin):
        tensor = tensor.data
    device = dtype = None
    flags: list[Any] = []
    for value in rest:
        if isinstance(value, torch.Tensor):
            device, dtype = device_of(value), value.dtype
        elif isinstance(value, torch.dtype) or value in _PYTHON_TYPES:
            dtype = value
        elif isinstance(value, (torch.device, str)) or (isinstance(value, int) and not isinstance(value, bool)):
            device = to_device(value)
        elif value is not None or flags:
            flags.append(value)
    if "other" in kwargs:
        device, dtype = device_of(kwargs["other"]), kwargs["other"].dtype
    device = to_device(kwargs.get("device")) or device
    dtype = kwargs.get("dtype") or dtype
    dtype = _PYTHON_TYPES.get(dtype, dtype)
    copy = kwargs.get("copy", flags[1] if len(flags) > 1 else False)
    options = {"memory_format": kwargs["memory_format"]} if kwargs.get("memory_format") is not None else {}
    if device is None:
        return func(tensor, dtype or tensor.dtype, copy=copy, **options)
    if copy and placement(tensor) == (GPU if device.type == "cuda" else HOST) and _is_on(tensor, device):
        return func(tensor, dtype or tensor.dtype, copy=True, **options)
    if placement(tensor) == REAL and device.type == "cpu" and not tensor.is_meta:
        return func(tensor, device, dtype or tensor.dtype, copy=copy, **options)
    non_blocking = bool(kwargs.get("non_blocking", flags[0] if flags else False))
    return mode.move(tensor, device, dtype, non_blocking=non_blocking, **options)


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether a tensor lies on that very card, or both are on the host."""
    return device.type != "cuda" or card_of(tensor) == check_ordinal(device)


@handles(torch.Tensor.cuda)
def _cuda(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    chosen = CARD.device if device is None else to_device(device)
    options = {"memory_format": kwargs["memory_format"]} if kwargs.get("memory_format") is not None else {}
    tensor = args[0].data if isinstance(args[0], UninitializedTensorMixin) else args[0]
    non_blocking = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
    return mode.move(tensor, chosen or CARD.device, None, non_blocking=non_blocking, **options)


@handles(torch.Tensor.cpu)
def _cpu(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return mode.move(args[0], CPU, None)


@handles(torch.Tensor.type)
def _type(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        name = func(torch.empty(0, dtype=tensor.dtype, device="cpu"))
        return name.replace("torch.", "torch.cuda.") if placement(tensor) == GPU else name
    if isinstance(wanted, torch.dtype):
        return tensor.to(wanted)
    name = wanted if isinstance(wanted, str) else f"{wanted.__module__}.{wanted.__name__}"
    dtype = torch.empty(0, device="cpu").type(name.replace(".cuda", "")).dtype
    return mode.move(tensor, CARD.device if ".cuda." in name else CPU, dtype)


@handles(torch.Tensor.pin_memory)
def _pin_memory(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor = args[0]
    mode.dispatch.machine.initialize()
    if placement(tensor) != HOST or _is_pinned(mode, func, (tensor,), {}):
        return tensor
    with mode.dispatch.ledger.made_on_host(PINNED):
        return tensor.clone()


@handles(torch.Tensor.is_pinned)
def _is_pinned(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    block = block_of(args[0]) if args[0].is_meta else None
    return block is not None and block.host is not None and block.host.log.is_pinned(block.host.number)


@handles(torch.Tensor.grad.__set__)  # type: ignore[union-attr]
def _set_grad(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`parameter.grad = tensor`, also how Module.cpu() takes a gradient along. On the host some tensors have data and
    some have none; a tensor and its gradient must agree."""
    target, value = args
    differ = isinstance(value, torch.Tensor) and target.is_meta != value.is_meta and value.layout is torch.strided
    if differ and placement(value) != GPU:
        value = (
            host_ops.empty_twin(value) if target.is_meta else torch.zeros(value.shape, dtype=value.dtype, device="cpu")
        )
    return func(target, value)


@handles(torch.Tensor.data.__set__)  # type: ignore[attr-defined]
def _set_data(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`parameter.data = tensor`, also how Module.cuda() moves a parameter."""
    target, value = args
    if not isinstance(value, torch.Tensor):
        return func(target, value)
    if isinstance(target, torch.nn.Parameter):
        mode.dispatch.machine.position.mark_weight(value)
    if target.is_meta and not value.is_meta and value.layout is torch.strided:
        value = host_ops.empty_twin(value)
    elif value.is_meta and not target.is_meta and placement(value) != REAL:
        # A tensor with data takes over one without: only the whole tensor behind the name can change.
        torch._C._swap_tensor_impl(target, value.detach().requires_grad_(target.requires_grad))
        return None
    return func(target, value)


@handles(torch.Tensor.__setitem__)
def _set_item(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor[place] = number`: for a tensor on the card PyTorch keeps the number on the host, and fills the place."""
    tensor, place, value = args
    if isinstance(value, (int, float, complex)) and placement(tensor) != REAL:
        value = torch.scalar_tensor(value, dtype=tensor.dtype)
    return func(tensor, _indices(mode, tensor, place), value)


@handles(torch.Tensor.__getitem__)
def _get_item(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(args[0], _indices(mode, args[0], args[1]))


def _indices(mode: FunctionMode, tensor: torch.Tensor, place: Any) -> Any:
    """Lists, ranges and arrays among the indices as tensors beside the one that is indexed. PyTorch makes them below
    every mode, where a tensor without data forgets what they hold."""
    several = isinstance(place, tuple)
    parts = place if several else (place,)
    if not any(_are_indices(part, several) for part in parts) or placement(tensor) == REAL:
        return place
    device = device_of(tensor) if placement(tensor) == GPU else CPU
    moved = tuple(
        mode.from_data(torch.tensor, (list(part) if type(part) is range else part,), {}, device)
        if _are_indices(part, several)
        else part
        for part in parts
    )
    return moved if several else moved[0]


def _are_indices(part: Any, nested: bool) -> bool:
    """A list with anything else in it may mean a tuple of indices, unless it is in a tuple itself."""
    if type(part) is list:
        return bool(part) and all(
            isinstance(item, Integral) or (nested and type(item) is list and _are_indices(item, nested))
            for item in part
        )
    return type(part) is range or (type(part).__name__ == "ndarray" and part.dtype.kind in "ib")


# -- default devices --------------------------------------------------------------------------------------------


@handles(torch.device)
def _make_device(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """A bare index means the accelerator, which the machine itself may not have."""
    if len(args) == 1 and type(args[0]) is int:
        return torch.device("cuda", args[0])
    return torch.device(*args, **kwargs)


def device_context_function(active: Callable[[], FunctionMode | None]) -> Callable[..., Any]:
    """`with torch.device("cuda")` sits below our mode on the stack: place its factory calls from there."""

    def __torch_function__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        mode = active()
        if func in device_module._device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = self.device
            if mode is not None:
                return mode.place(func, args, kwargs)
        return func(*args, **kwargs)

    return __torch_function__


@contextmanager
def weights_without_numbers() -> Iterator[None]:
    """While a network is built whose weights nobody reads: large draws of random numbers give tensors without data, as
    parameters are anyway. To draw them takes longer than to trace a step."""
    before = _BUILDING.set(True)
    try:
        yield
    finally:
        _BUILDING.reset(before)


@handles(torch.rand, torch.randn)
def _draw(mode: FunctionMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {key: value for key, value in kwargs.items() if value is not None}
    if not _BUILDING.get() or not given.keys() <= {"dtype", "requires_grad"} or _elements(args) < _LARGE_DRAW:
        return mode.call(func, args, kwargs)
    before, mode.dispatch.target = mode.dispatch.target, HOST
    try:
        return func(*args, **{**given, "device": META})
    finally:
        mode.dispatch.target = before


def _elements(sizes: tuple[Any, ...]) -> int:
    """Of what a factory function makes; 0 where that is not said by numbers."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    return prod(sizes) if sizes and all(isinstance(size, int) for size in sizes) else 0
