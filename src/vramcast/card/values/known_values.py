"""Known contents of small tensors.

Ids, masks, counters, schedules and other small tensors made from data that is there are computed for real beside the
data-free run, so that reads (`.item()`, `if mask.all()`, `nonzero`, boolean indexing) get the answer the real run
would get. A block's values are a CPU storage of the same size; views share it. A tensor that depends on anything
unknown (weights, activations) is unknown, and stays so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from vramcast.card.dispatch.storages import HOST, Block, block_of, is_virtual_gpu, known_content, known_values
from vramcast.card.values.cpu_kernels import on_cpu
from vramcast.card.values.random_numbers import draws

if TYPE_CHECKING:
    from vramcast.card.dispatch.modes import DispatchMode

LIMIT_EXACT = 1 << 20
"""Most elements of an integer or bool tensor whose contents are carried."""
LIMIT_FLOAT = 1 << 14
"""The same for floating point: schedules, scales and counters are small; activations are not worth computing."""

_CPU = torch.device("cpu")
_WITHOUT_CONTENT = {"empty", "empty_strided", "empty_permuted", "empty_like", "new_empty", "new_empty_strided"}
_LIMIT_WITHOUT_CONTENT = 4096
KEEP_VALUES_BELOW = 65
"""Tiny parameters (scales, temperatures, gates) keep their initial values: programs read them."""
_MANY_THREADS = 1 << 15
"""Elements from which several threads are quicker than one."""
_OVERWRITES = {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_", "aten::random_"}


_all_sizes = False


@contextmanager
def of_all_sizes() -> Iterator[None]:
    """In here contents of tensors of every size are carried (see computing.py)."""
    global _all_sizes
    _all_sizes = True
    try:
        yield
    finally:
        _all_sizes = False


def are_of_all_sizes() -> bool:
    return _all_sizes


def small(tensor: torch.Tensor) -> bool:
    if _all_sizes:
        return True
    limit = LIMIT_FLOAT if tensor.dtype.is_floating_point or tensor.dtype.is_complex else LIMIT_EXACT
    return tensor.numel() <= limit


def _exact_on_host(tensor: torch.Tensor) -> bool:
    """Ids and masks in pinned memory: the program works on them with the host's processor, whatever their size."""
    block = block_of(tensor)
    return block is not None and block.device == HOST and not (tensor.is_floating_point() or tensor.is_complex())


def forget(tensor: torch.Tensor) -> None:
    block = block_of(tensor)
    if block is not None:
        block.values = block.recipe = None


def learn(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Give a fresh tensor (whole storage, same strides) the content of a real one."""
    if content._is_zerotensor():  # autograd's zeros have no memory behind them
        return
    block = block_of(tensor)
    if block is not None and content.untyped_storage().nbytes() == block.nbytes:
        block.values = content.untyped_storage()


def real_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """The same arguments with every virtual tensor replaced by its contents; None if one is unknown."""
    try:
        real = [_real(a) for a in args]
        named = {k: _real(v) for k, v in kwargs.items()}
    except LookupError:
        return None
    if isinstance(named.get("device"), torch.device):
        named["device"] = _CPU
    return real, named


def _may_be_read(tensor: torch.Tensor) -> bool:
    return _all_sizes or tensor.numel() <= LIMIT_EXACT


def _real(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            if not _may_be_read(value):
                raise LookupError
            return value
        content = known_values(value)
        if content is None:
            raise LookupError
        return content
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_real(v) for v in value]
    return value


def propagate(mode: DispatchMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
    """After a functional op: compute the result for real too, if its inputs are known and it is small."""
    known = False
    for arg in args:
        if isinstance(arg, torch.Tensor):
            if not arg.is_meta:
                continue
            block = block_of(arg)
            if block is None or block.values is None:
                return
            known = True
        elif isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], torch.Tensor):
            first = block_of(arg[0]) if arg[0].is_meta else None
            if first is None or first.values is None:
                return
            known = True
    outs = [o for o in (out if isinstance(out, (list, tuple)) else (out,)) if isinstance(o, torch.Tensor)]
    if not outs or not all(small(o) or (known and _exact_on_host(o)) for o in outs):
        return
    if not known and any(isinstance(a, torch.Tensor) and not _may_be_read(a) for a in args):
        return
    empty = func._schema.name.removeprefix("aten::") in _WITHOUT_CONTENT
    if empty and outs[0].numel() > _LIMIT_WITHOUT_CONTENT and not _all_sizes:
        return
    if not empty and not _all_sizes and mode.machine.guesses.waiting.put_off(func, args, kwargs, outs):
        return
    real = real_arguments(args, kwargs)
    if real is None:
        return
    content = computed(mode, func, *real, drawn_for=outs)
    if content is None:
        return
    if empty:
        content.zero_()  # whatever lay there: a prediction must not depend on it
    learn_all(outs, content if isinstance(content, (list, tuple)) else (content,))


def computed(
    mode: DispatchMode, func: Any, args: list[Any], kwargs: dict[str, Any], *, drawn_for: Sequence[torch.Tensor]
) -> Any:
    """What the op gives on the CPU, for such tensors of the card; None where it cannot be computed there."""
    try:
        with _drawing(mode, func, drawn_for[0]), _threads_for(drawn_for, args):
            return on_cpu(func)(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def learn_all(tensors: Sequence[torch.Tensor], contents: Sequence[Any]) -> None:
    """Give fresh tensors what an op has computed, in their own layout; those that it has not computed are zeros."""
    found = [content for content in contents if isinstance(content, torch.Tensor)]
    found += [torch.zeros(rest.shape, dtype=rest.dtype, device="cpu") for rest in tensors[len(found) :]]
    for virtual, actual in zip(tensors, found, strict=False):
        if virtual.shape == actual.shape and virtual.dtype == actual.dtype:
            if virtual.stride() != actual.stride():
                match = torch.empty_strided(virtual.size(), virtual.stride(), dtype=virtual.dtype, device="cpu")
                actual = match.copy_(actual)
            learn(virtual, actual)


def update_in_place(mode: DispatchMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """After an in-place op: repeat it on the known contents, or forget them."""
    target = args[0]
    if not isinstance(target, torch.Tensor) or not target.is_meta:
        return
    block = block_of(target)
    if block is None:
        return
    if _is_weight_drawn_on_the_host(func, block, target):
        mode.machine.guesses.keep(block)
        block.values = None  # as weights are left without data; their numbers are skipped
        return
    if block.values is None:
        whole = target.numel() * target.element_size() == block.nbytes
        has_source = len(args) > 1 or _all_sizes
        if not (whole and has_source and small(target) and func._schema.name in _OVERWRITES):
            return
        if not all(not a.is_meta or known_values(a) is not None for a in args[1:] if isinstance(a, torch.Tensor)):
            return
        block.values = torch.zeros(block.nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
    real = real_arguments(args, kwargs)
    if real is None:
        mode.machine.guesses.keep(block)
        block.values = None
        return
    if block.recipe is not None:  # a recipe reads the values as they were
        content = known_content(block)
        block.values, block.recipe = None if content is None else content.clone(), None
        real = real_arguments(args, kwargs)
    try:
        with _drawing(mode, func, target), _threads_for(args):
            func(*real[0], **real[1])  # type: ignore[index]
    except (RuntimeError, NotImplementedError, TypeError):
        block.values = None


def _is_weight_drawn_on_the_host(func: Any, block: Block, target: torch.Tensor) -> bool:
    large = target.numel() >= KEEP_VALUES_BELOW and target.dtype.is_floating_point
    return large and block.device == HOST and not _all_sizes and draws(func)


def overwrite_first(mode: DispatchMode, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """For a functional op whose result takes the place of its first argument: that holds the result from now on."""
    target = args[0]
    block = block_of(target)
    if block is None or (block.values is None and block.recipe is None):
        return
    real = real_arguments(args, kwargs)
    content = None if real is None else computed(mode, func, *real, drawn_for=(target,))
    if content is None:
        mode.machine.guesses.note_overwritten(block, func, args, kwargs)
    else:
        block.values = block.recipe = None
        learn_all((target,), (content,))


def _drawing(mode: DispatchMode, func: Any, tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Random numbers of the card are none of the host's."""
    if draws(func):
        if is_virtual_gpu(tensor):
            return mode.machine.card_draws.drawing()  # type: ignore[no-any-return]
        mode.machine.host_draws.settle()
    return nullcontext()


@contextmanager
def one_thread() -> Iterator[None]:
    """For tensors so small that threads would wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _threads_for(*groups: Sequence[Any]) -> AbstractContextManager[None]:
    """One thread, unless contents of every size are carried and these are large. MKL starts threads from 256 elements
    on, and on a busy computer they wait for each other for milliseconds."""
    if _all_sizes:
        for group in groups:
            for value in group:
                if isinstance(value, torch.Tensor) and value.numel() >= _MANY_THREADS:
                    return nullcontext()
    return one_thread()


def update_outs(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str]) -> None:
    """After an op that wrote into `out=`: compute what it wrote where its inputs are known, else forget what was
    there."""
    outs = [kwargs[name] for name in names]
    for out in outs:
        for tensor in out if isinstance(out, (list, tuple)) else (out,):
            forget(tensor)
    if not all(isinstance(out, torch.Tensor) and small(out) for out in outs):
        return
    real = real_arguments(args, {name: value for name, value in kwargs.items() if name not in names})
    if real is None:
        return
    written = {name: torch.empty(0, dtype=kwargs[name].dtype, device="cpu") for name in names}
    try:
        func(*real[0], **real[1], **written)
    except (RuntimeError, NotImplementedError, TypeError):
        return
    for name in names:
        virtual, actual = kwargs[name], written[name]
        if virtual.shape == actual.shape:
            learn(
                virtual,
                torch.empty_strided(virtual.size(), virtual.stride(), dtype=virtual.dtype, device="cpu").copy_(actual),
            )
