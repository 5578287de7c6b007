"""Ops whose result depends on the data. Known contents give the real answer, others a plausible one, which is noted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vramcast.card.dispatch.storages import GPU, block_of, is_known, known_values
from vramcast.card.libraries.selection import counting_bytes, selecting_bytes
from vramcast.card.libraries.sorting import sort_steps
from vramcast.card.ops.registry import Call, kernel
from vramcast.card.values import known_values as values
from vramcast.card.values import reads
from vramcast.card.values.known_values import one_thread

GUESSED = "as many as random activations give"
GUESSED_DIFFERENT = (
    "as many different values as random activations give; sizes and loops may depend on it "
    "(--compute-values computes it)"
)
_DIFFERENT = frozenset({"_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"})
"""Ops whose result has one element for each different value: programs loop over it."""


def real_result(call: Call) -> Any:
    """The op run on given or known contents, or plausible ones, wrapped as tensors of the card; None if they are
    unknown."""
    given = _given(call, call.args[0])
    if given is not None:
        return wrap(call, call.func(given, *call.args[1:], **call.kwargs))
    real = values.real_arguments(call.args, call.kwargs)
    guessed = real is None
    if real is None:
        real = call.mode.machine.guesses.arguments(call.args, call.kwargs)
    if real is None:
        return None
    try:
        content = call.func(*real[0], **real[1])
    except NotImplementedError:  # a dtype the CPU's kernel does not take
        return None
    except RuntimeError:  # what was made up is not what the op takes
        if guessed:
            return None
        raise
    out = wrap(call, content)
    guessed = guessed and call.mode.machine.guesses.made_up
    name = _name(call)
    if name in _DIFFERENT and (guessed or _is_chosen(call.args[0])):
        call.unknown_read(name.strip("_2"), GUESSED_DIFFERENT, decides_sizes=True)
    elif guessed:
        call.unknown_read(name, GUESSED)
    return out


def _is_chosen(tensor: torch.Tensor) -> bool:
    block = block_of(tensor)
    return block is not None and block.chosen


def mask_contents(call: Call, mask: torch.Tensor, what: str) -> torch.Tensor | None:
    """Which elements a mask chooses: as given, known, or plausible; None if nothing is known of it."""
    given = _given(call, mask)
    if given is not None:
        return given
    content = known_values(mask) if mask.is_meta else mask
    if content is None:
        content = call.mode.machine.guesses.contents(mask)
        if content is not None and call.mode.machine.guesses.made_up:
            call.unknown_read(what, GUESSED)
    return content


def _given(call: Call, tensor: torch.Tensor) -> torch.Tensor | None:
    """The contents that the user has given for the line that needs them."""
    content = call.mode.machine.given_values.fitting(tensor) if tensor.is_meta else None
    if content is not None:
        call.unknown_read(_name(call), "as given")
    return content


def _name(call: Call) -> str:
    return str(call.func._schema.name).rpartition("::")[2]


def wrap(call: Call, content: Any) -> Any:
    """Real CPU results as booked tensors with known contents."""
    if isinstance(content, torch.Tensor):
        out = call.empty(content.size(), content.dtype, content.stride())
        values.learn(out, content)
        return out
    if isinstance(content, (list, tuple)):
        return (
            type(content)(wrap(call, item) for item in content)
            if type(content) in (list, tuple)
            else tuple(wrap(call, item) for item in content)
        )
    return content


@kernel("aten::_local_scalar_dense")
def item(call: Call) -> bool | int | float | complex:
    call.mode.machine.synchronize()
    return reads.read(call.mode.machine, call.args[0], "read as a Python number").item()


@kernel("aten::equal", "aten::allclose")
def comparison(call: Call) -> bool:
    """Compare two tensors with each other as a whole."""
    given: bool | None = call.mode.machine.given_values.truth()
    if given is not None:
        call.unknown_read(f"torch.{_name(call)}", repr(given))
        return bool(given)
    real = values.real_arguments(call.args, call.kwargs)
    if real is not None:
        return bool(call.func(*real[0], **real[1]))
    machine = call.mode.machine
    (left, left_made_up), (right, right_made_up) = (
        reads.look(machine, side) if side.is_meta else (side, False) for side in call.args[:2]
    )
    answer = bool(call.func(left, right, *call.args[2:], **call.kwargs))
    if left_made_up or right_made_up:
        answer, assumed, decides_sizes = reads.truth(machine, answer)
        machine.note_unknown_read(f"torch.{_name(call)}", assumed, decides_sizes=decides_sizes)
    return answer


@kernel("aten::nonzero", "aten::argwhere")
def nonzero(call: Call) -> Any:
    tensor = call.args[0]
    with _selecting(call, tensor.numel()):
        out = real_result(call)
        if out is None:
            call.unknown_read("nonzero", f"all {tensor.numel()} elements")
            out = call.empty((tensor.numel(), tensor.dim()), torch.int64, (1, max(tensor.numel(), 1)))
    call.mode.machine.synchronize()
    return out


@contextmanager
def _selecting(call: Call, elements: int) -> Iterator[None]:
    """What is held while the places of chosen elements are made: they are counted before, and written after."""
    count = call.empty((1,), torch.int32) if call.device == GPU else None
    call.scratch(counting_bytes(elements, call.gpu.sm_count or 1))
    yield
    call.scratch(selecting_bytes(elements))
    del count


@kernel("aten::masked_select")
def masked_select(call: Call) -> Any:
    tensor, mask = call.args
    if mask.dtype is not torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    content = mask_contents(call, mask, "masked_select")
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    if content is None:
        count = torch.Size(shape).numel()
        call.unknown_read("masked_select", f"all {count} elements")
    else:
        count = int(content.expand(shape).sum())
    return call.empty((count,), tensor.dtype)


@kernel("aten::index.Tensor", "aten::_unsafe_index.Tensor")
def index(call: Call) -> Any:
    tensor, indices = call.args
    expanded = expand_masks(call, indices)
    copies = alike_in_stride(call, expanded)
    out = call.mode.calls.run(call.func, (tensor, expanded), call.kwargs)
    call.mode.adopt(out, call.device)
    del copies
    values.propagate(call.mode, call.func, (tensor, expanded), call.kwargs, out)
    return out


def expand_masks(call: Call, indices: Any) -> list[Any]:
    """Boolean masks as index tensors, as CUDA's indexing does before it gathers."""
    expanded: list[Any] = []
    for entry in indices:
        if entry is None or not isinstance(entry, torch.Tensor):
            expanded.append(entry)
        elif entry.dtype in (torch.bool, torch.uint8):
            content = mask_contents(call, entry, "indexing with a mask")
            if content is None:
                call.unknown_read("indexing with a mask", f"all {entry.numel()} elements chosen")
                content = torch.ones(entry.shape, dtype=torch.bool, device="cpu")
            call.mode.machine.synchronize()
            positions = content.nonzero()
            with _selecting(call, entry.numel()):
                block = call.empty(positions.size(), torch.int64, positions.stride())
            values.learn(block, positions)
            expanded.extend(block.unbind(1))
        elif not entry.is_meta:  # CPU indices are moved to the card
            moved = call.empty(entry.size(), entry.dtype, entry.stride())
            values.learn(moved, entry.clone())
            expanded.append(moved)
        else:
            expanded.append(entry)
    return expanded


def alike_in_stride(call: Call, indices: list[Any]) -> list[torch.Tensor]:
    """Copies of index tensors, which CUDA wants with the same strides once they are broadcast
    (AdvancedIndex in TensorAdvancedIndexing.cpp)."""
    given = [entry for entry in indices if isinstance(entry, torch.Tensor)]
    if call.device != GPU or len(given) < 2:
        return []
    size = torch.broadcast_shapes(*(entry.shape for entry in given))
    strides = [_broadcast_stride(entry, size) for entry in given]
    if len(set(strides)) == 1:
        return []
    dense = _dense_stride(size)
    differ = [
        any(step != own for length, step, own in zip(size, stride, dense, strict=True) if length != 1)
        for stride in strides
    ]
    return [call.empty(size, entry.dtype) for entry, copied in zip(given, differ, strict=True) if copied]


def _broadcast_stride(tensor: torch.Tensor, size: torch.Size) -> tuple[int, ...]:
    if tensor.shape == size:
        return tensor.stride()
    missing = len(size) - tensor.dim()
    own = (1,) * missing + tuple(tensor.shape), (0,) * missing + tensor.stride()
    return tuple(0 if length != wanted else step for length, step, wanted in zip(*own, size, strict=True))


def _dense_stride(size: torch.Size) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides = [1]
    for length in reversed(size[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides)) if size else ()


@kernel(
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::unique_dim_consecutive",
    "aten::bincount",
    "aten::repeat_interleave.Tensor",
    "aten::histc",
)
def needs_values(call: Call) -> Any:
    out = real_result(call)
    if out is not None:
        call.mode.machine.synchronize()
        return out
    name = call.func._schema.name.removeprefix("aten::")
    tensor = call.args[0]
    if name == "repeat_interleave":
        size = call.argument("output_size")
        if size is None:
            size = tensor.numel()
            call.unknown_read(name, "each element once")
        return call.empty((size,), tensor.dtype)
    if name in ("bincount", "histc"):
        length = max(int(call.argument("minlength") or 0), 1) if name == "bincount" else call.argument("bins")
        call.unknown_read(name, f"{length} bins")
        return call.empty((length,), torch.int64 if name == "bincount" else tensor.dtype)
    call.unknown_read(name, "all elements differ", decides_sizes=True)
    count = tensor.numel()
    empty = call.empty((0,), torch.int64)
    inverse = call.empty(tensor.shape, torch.int64) if call.argument("return_inverse") else empty
    counts = call.empty((count,), torch.int64) if call.argument("return_counts") else empty
    return call.empty((count,), tensor.dtype), inverse, counts


# Indices chosen by unknown scores (expert routing, sampling, anchors): drawn at random, so that what follows sees
# a plausible, balanced choice instead of a constant one.


@kernel("aten::topk", "aten::sort", "aten::sort.stable", "aten::argsort")
def ranking(call: Call) -> Any:
    out = call.run()
    tensor = call.args[0]
    if call.func._schema.name != "aten::topk" and tensor.dim():
        length = tensor.size(call.argument("dim", -1))
        for held in sort_steps(length, tensor.numel() // max(length, 1), tensor.element_size()):
            call.scratch(*held)
    index = out[1] if isinstance(out, (list, tuple)) else out
    if _given(call, index) is not None or is_known(tensor):
        return out
    if values.small(index):
        dim = call.argument("dim", -1)
        _choose(call, out, index, tensor.size(dim) if tensor.dim() else 1, dim)
    return out


@kernel("aten::median.default", "aten::nanmedian.default")
def median(call: Call) -> Any:
    """All elements are sorted first (median_impl in aten/src/ATen/native/cuda/Sorting.cpp)."""
    x = call.args[0]
    flat = None if x.is_contiguous() else call.empty((x.numel(),), x.dtype)
    in_order = call.empty((x.numel(),), x.dtype)
    places = call.empty((x.numel(),), torch.int64)
    for held in sort_steps(x.numel(), 1, x.element_size()):
        call.scratch(*held)
    del places, flat
    if call.func._schema.name == "aten::nanmedian":
        call.scratch(x.numel(), 8)  # which are no numbers, and how many
    out = call.run()
    del in_order
    return out


@kernel("aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim", "aten::multinomial")
def choice(call: Call) -> Any:
    out = call.run()
    tensor = call.args[0]
    if call.func._schema.name == "aten::multinomial":  # each probability is divided by a random number
        call.scratch(tensor.numel() * tensor.element_size())
    index = out[1] if isinstance(out, (list, tuple)) else out
    if _given(call, index) is not None or is_known(tensor):
        return out
    if values.small(index):
        dim: Any = -1 if call.func._schema.name == "aten::multinomial" else call.argument("dim")
        length = tensor.numel() if dim is None else (tensor.size(dim) if tensor.dim() else 1)
        _choose(call, out, index, length, None)
    return out


def _choose(call: Call, out: Any, index: torch.Tensor, length: int, dim: int | None) -> None:
    """Give the indices that an op returns plausible contents: those that follow from assumed numbers; where these
    cannot be worked out, indices below `length`, different ones along `dim`, drawn at random."""
    size, draws = index.size(), call.mode.machine.card_draws

    def drawn() -> torch.Tensor:
        with draws.drawing():
            return _drawn(size, length, dim)

    waits = call.mode.machine.guesses.waiting.put_off_choice(
        call.func,
        call.args,
        call.kwargs,
        [item if item is index else None for item in (out if isinstance(out, (list, tuple)) else (out,))],
        drawn,
    )
    if waits is not None:
        _note_choice(call, index, "indices of random activations" if waits else None)
    elif not _chosen_plausibly(call, index) and index.numel():
        _learn_choice(index, drawn())
        _note_choice(call, index, "indices drawn at random")


def _chosen_plausibly(call: Call, index: torch.Tensor) -> bool:
    guesses = call.mode.machine.guesses
    real = guesses.arguments(call.args, call.kwargs)
    if real is None:
        return False
    try:
        with one_thread(), call.mode.machine.card_draws.drawing():
            out = call.func(*real[0], **real[1])
    except RuntimeError:  # what was made up is not what the op takes: probabilities that are none
        return False
    _learn_choice(index, out[1] if isinstance(out, (list, tuple)) else out)
    _note_choice(call, index, "indices of random activations" if guesses.made_up else None)
    return True


def _learn_choice(index: torch.Tensor, content: torch.Tensor) -> None:
    strided = torch.empty_strided(index.size(), index.stride(), dtype=index.dtype, device="cpu")
    values.learn(index, strided.copy_(content))


def _note_choice(call: Call, index: torch.Tensor, assumed: str | None) -> None:
    block = block_of(index)
    if block is not None:
        block.chosen = assumed is not None
    if assumed is not None:
        call.unknown_read(call.func._schema.name.removeprefix("aten::"), assumed)


def _drawn(size: torch.Size, length: int, dim: int | None) -> torch.Tensor:
    if dim is None or not size:
        return torch.randint(0, max(length, 1), size, device="cpu")
    others = [*size]
    k = others.pop(dim)
    rows = torch.Size(others).numel()
    if rows * length > 4 * values.LIMIT_EXACT:
        return torch.randint(0, max(length, 1), size, device="cpu")
    return torch.rand(rows, length, device="cpu").argsort(-1)[:, :k].reshape(*others, k).movedim(-1, dim)
