"""Operators on each element: three ways in which PyTorch's kernels walk through memory, and copies.

vector   every tensor dense, in the same order and of the same dtype: loads and stores of 16 bytes
cast     dense and in the same order, but of different dtypes: one element after the other
strided  anything broadcast, sliced or turned: offsets are worked out for each element
"""

from __future__ import annotations

from math import prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import SHORT_NAMES, Arguments, Tensor, item_bytes

# Instructions a thread spends on one element, with the offsets it works out; more where it asks for each what dtype it
# is to be read as.
STRIDED_INSTRUCTIONS = 100.0
_MIXED_INSTRUCTIONS = 175.0
_CAST_INSTRUCTIONS = 80.0
_VECTOR_INSTRUCTIONS = 12.0
_RANDOM_INSTRUCTIONS = 60.0
_COMPARISON_NAMES = "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite"
_COMPARISONS = frozenset(_COMPARISON_NAMES.split())
_RANK = ("b8", "u8", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "c64", "c128")


def _promoted(tensors: list[Tensor]) -> str:
    """The dtype of the result; a tensor without dimensions counts only where there is nothing else."""
    sized = [tensor for tensor in tensors if tensor.shape] or tensors
    names = {tensor.dtype for tensor in sized}
    if {"f16", "bf16"} <= names:
        return "f32"
    return max(names, key=lambda name: _RANK.index(name) if name in _RANK else 0)


def broadcast(tensors: list[Tensor]) -> tuple[int, ...]:
    rank = max((len(tensor.shape) for tensor in tensors), default=0)
    sizes = [1] * rank
    for tensor in tensors:
        for place, size in enumerate(tensor.shape, rank - len(tensor.shape)):
            if size != 1:
                sizes[place] = size
    return tuple(sizes)


def is_broadcast(tensors: list[Tensor]) -> bool:
    """Whether each tensor has the size of the whole, or one, in every dimension."""
    shape = broadcast(tensors)
    return all(
        size in (1, whole)
        for tensor in tensors
        for size, whole in zip(tensor.shape, shape[len(shape) - len(tensor.shape) :], strict=True)
    )


def streamed(args: Arguments, card: Card) -> list[Part]:
    """An operator of which nothing is known but what it is given: all of it read, as much as the largest written."""
    sizes = [tensor.nbytes for tensor in args.tensors if tensor.device == "cuda"]
    if not sizes:
        return []
    moved = float(sum(sizes) + max(sizes))
    return [Part("elementwise-vector", max(moved / card.bandwidth, 1e-10), 0.0, moved)]


def _steps(tensor: Tensor) -> tuple[int, ...]:
    if tensor.strides is not None:
        return tensor.strides
    steps, step = [], 1
    for size in reversed(tensor.shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def walk(card: Card, op: str, inputs: list[Tensor], shape: tuple[int, ...], dtype: str, written: float,
         output: Tensor | None = None) -> Part:  # fmt: skip
    """One kernel over `shape`, reading `inputs`; `output` says in which order it is written, if not in the first's."""
    count = prod(shape)
    moved = float(sum(tensor.nbytes for tensor in inputs)) + written
    whole = [tensor for tensor in inputs if tensor.numel == count and tensor.dense]
    order = (output or (whole[0] if whole else inputs[0])).order if inputs else ()
    same_order = len(whole) == len(inputs) and all(tensor.order == order for tensor in whole)
    tags = [op, f"{op}/{item_bytes(dtype)}"]
    if same_order or count <= 1:
        dtypes = {tensor.dtype for tensor in inputs} | {dtype}
        to_half = dtypes in ({"f32", "bf16"}, {"f32", "f16"}) and dtype != "f32" and len(inputs) == 1
        if len(dtypes) == 1 or to_half or dtype == "b8":
            base = max(moved / card.bandwidth, count * _VECTOR_INSTRUCTIONS / card.issue)
            return Part("elementwise-vector", base, float(count), moved, tags=(*tags, f"{item_bytes(dtype)}-byte"))
        base = max(moved / card.bandwidth, count * _CAST_INSTRUCTIONS / card.issue)
        return Part("elementwise-cast", base, float(count), moved, tags=(*tags, f"{len(inputs)}-input"))
    # Neighbouring threads should meet neighbouring addresses.
    inner = order[-1] if order else len(shape) - 1
    turned = False
    for tensor in inputs:
        place = inner - (len(shape) - len(tensor.shape))
        if 0 <= place < len(tensor.shape) and tensor.shape[place] > 1 and _steps(tensor)[place] > 1:
            # One that is small against the result stays in the cache.
            turned = turned or 2 * tensor.nbytes > tensor.item * count
    mixed = len({tensor.dtype for tensor in inputs} | {dtype}) > 1 and dtype != "b8"
    base = max(moved / card.bandwidth, count * (_MIXED_INSTRUCTIONS if mixed else STRIDED_INSTRUCTIONS) / card.issue)
    tags += [f"{item_bytes(dtype)}-byte", f"{len(inputs)}-input", f"{len([s for s in shape if s > 1])}d"]
    tags += ["mixed"] * mixed
    if turned:
        tags.append(f"turned-{item_bytes(dtype)}")
    return Part("elementwise-strided", base, float(count), moved, tags=tuple(tags))


def pointwise(name: str, args: Arguments, card: Card) -> list[Part]:
    """Any operator that gives one element for each of its broadcast inputs."""
    tensors = [tensor for tensor in args.tensors if tensor.device == "cuda"]
    if not tensors:
        return []
    shape = broadcast(tensors)
    bare = name.rstrip("_")
    wanted = args.kwargs.get("dtype")
    dtype = SHORT_NAMES.get(wanted, wanted) if isinstance(wanted, str) else _promoted(tensors)
    if bare in _COMPARISONS:
        dtype = "b8"
    in_place = name.endswith("_")
    if in_place:
        dtype = tensors[0].dtype
    count = prod(shape)
    return [walk(card, bare, tensors, shape, dtype, float(count * item_bytes(dtype)), tensors[0] if in_place else None)]


def masked_fill(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Out of place: a copy, which is filled."""
    x = args.tensor(0)
    return [] if x is None else [*transfer(card, x, x), *pointwise("masked_fill_", args, card)]


def _target(source: Tensor, args: Arguments) -> Tensor:
    """What a copy writes: its dtype and layout."""
    wanted = args.kwargs.get("dtype")
    dtype = SHORT_NAMES.get(wanted, wanted) if isinstance(wanted, str) else source.dtype
    layout = args.kwargs.get("memory_format")
    strides = source.strides if source.dense else None
    if layout == "contiguous_format":
        strides = None
    elif layout in ("channels_last", "channels_last_3d") and len(source.shape) >= 4:
        strides = channels_last_strides(source.shape)
    return Tensor(dtype, source.shape, strides)


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = {1: 1}, shape[1]
    for dim in range(len(shape) - 1, 1, -1):
        steps[dim] = step
        step *= shape[dim]
    steps[0] = step
    return tuple(steps[dim] for dim in range(len(shape)))


LARGEST_KEPT_BLOCK = 1 << 19
"""More than this, brought to ordinary memory, goes through the driver's own buffer, as what comes from there does, into
pages that nobody has written to yet (`new_pages` in timing/host.py): larger blocks go back to the system when they are
freed. Less goes at the rate of the link, and so does what comes from pinned memory (294 MB in the zoo's 3-D network:
5.3 ms)."""


def transfer(card: Card, source: Tensor, target: Tensor, *, pinned: bool = False) -> list[Part]:
    """A copy between two tensors, wherever they are."""
    if source.device != "cuda" or target.device != "cuda":
        if source.device == target.device:
            return []
        moved = float(source.nbytes)
        # The link's figure is for both directions together; a copy goes one way.
        base = moved / (_link(card) / 2)
        is_direct = pinned if target.device == "cuda" else moved <= LARGEST_KEPT_BLOCK
        kind = "copy-to-host" if is_direct else "copy-to-device"
        return [Part(kind, max(base, 1e-9), 0.0, moved)]
    if source.dtype == target.dtype and source.dense and source.order == target.order:
        moved = 2.0 * source.nbytes
        return [Part("copy", moved / card.bandwidth, 0.0, moved)]
    written = float(source.numel * target.item)
    return [walk(card, "copy", [source], source.shape, target.dtype, written, target)]


def _link(card: Card) -> float:
    """To the host: PCIe, also where GPUs are linked by something faster."""
    pcie = 2 * card.spec.architecture.host_bytes_per_second
    return min(card.spec.link_bytes_per_second or pcie, pcie)


def to_copy(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    source = args.tensor(0)
    if source is None or source.sparse:
        return _generic_copy(args, card)
    target = _target(source, args)
    device = args.kwargs.get("device")
    place = device.split(":")[0] if isinstance(device, str) else source.device
    placed = Tensor(target.dtype, target.shape, target.strides, place)
    return transfer(card, source, placed, pinned=bool(args.kwargs.get("pinned")))


def _generic_copy(args: Arguments, card: Card) -> list[Part]:
    moved = 2.0 * sum(tensor.nbytes for tensor in args.tensors)
    return [Part("copy", moved / card.bandwidth, 0.0, moved)]


def made_contiguous(card: Card, tensors: list[Tensor]) -> list[Part]:
    """The copies of those that are not: many kernels take only contiguous tensors."""
    return [
        walk(
            card,
            "copy",
            [tensor],
            tensor.shape,
            tensor.dtype,
            float(tensor.numel * tensor.item),
            Tensor(tensor.dtype, tensor.shape),
        )
        for tensor in tensors
        if tensor.strides is not None
    ]


def read_scalar(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """`.item()`: one element brought to the host, unless it is there."""
    x = args.tensor(0)
    return [] if x is None or x.device != "cuda" else [Part("copy-to-host", 1e-9, 0.0, float(x.nbytes))]


def copy_into(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    target, source = args.tensor(0), args.tensor(1)
    if target is None or source is None:
        return []
    if source.numel == target.numel:
        return transfer(card, source, target)
    return [walk(card, "copy", [source], target.shape, target.dtype, float(target.nbytes), target)]


def fill(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """zeros, ones, full, fill_ and the like; arange."""
    tensors = [tensor for tensor in args.tensors if tensor.device == "cuda"]
    device = args.kwargs.get("device")
    if not tensors and isinstance(device, str) and not device.startswith("cuda"):
        return []
    if not tensors and device is None:
        return []
    wanted = args.kwargs.get("dtype")
    dtype = SHORT_NAMES.get(wanted, wanted) if isinstance(wanted, str) else (tensors[0].dtype if tensors else "f32")
    sizes = next((value for value in args.args if isinstance(value, list)), None)
    if sizes is not None:
        count = prod(item for item in sizes if isinstance(item, int))
    else:
        count = tensors[0].numel if tensors else int(max((v for v in args.args if isinstance(v, int)), default=1))
    moved = float(count * item_bytes(dtype))
    return [Part("fill", max(moved / card.bandwidth, 1e-10), 0.0, moved)]


def random(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    parts = fill(args, card, tf32, cudnn_tf32)
    if not parts:
        return []
    moved = parts[0].bytes
    base = max(moved / card.bandwidth, moved / 4 * _RANDOM_INSTRUCTIONS / card.issue)
    return [Part("random", base, 0.0, moved)]


def dropout(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    if x is None:
        return []
    moved = 2.0 * x.nbytes + x.numel
    base = max(moved / card.bandwidth, x.numel * _RANDOM_INSTRUCTIONS / card.issue)
    tags = (f"{x.item}-byte", "dense" if x.dense else "strided")
    return [Part("dropout", base, float(x.numel), moved, tags=tags)]


def concatenate(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    tensors = [tensor for tensor in args.tensors if tensor.numel and tensor.device == "cuda"]
    if not tensors:
        return []
    count = sum(tensor.numel for tensor in tensors)
    moved = 2.0 * sum(tensor.nbytes for tensor in tensors)
    base = max(moved / card.bandwidth, count * STRIDED_INSTRUCTIONS / 2 / card.issue)
    plain = all(tensor.strides is None for tensor in tensors)
    tags = (f"{tensors[0].item}-byte", f"{'plain' if plain else 'strided'}-{tensors[0].item}")
    turned = any(tensor.order and tensor.order[-1] != len(tensor.shape) - 1 for tensor in tensors)
    return [Part("cat", base, 0.0, moved, tags=(*tags, "turned") if turned else tags)]


def placed(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """slice_backward, select_backward, constant_pad_nd: a result of zeros, then the tensor copied into it."""
    x = args.tensor(0)
    if x is None:
        return []
    sizes = args.integers(1)
    if len(sizes) == len(x.shape) or len(sizes) == len(x.shape) + 1:
        count = prod(sizes)
    else:
        grown = list(x.shape)
        for place in range(len(sizes) // 2):
            grown[-1 - place] += sizes[2 * place] + sizes[2 * place + 1]
        count = prod(grown)
    zeros = float(count * x.item)
    copied = 2.0 * x.nbytes
    base = max(copied / card.bandwidth, x.numel * STRIDED_INSTRUCTIONS / card.issue)
    tags = (
        "placed",
        f"{x.item}-byte",
        *((f"turned-{x.item}",) if x.order and x.order[-1] != len(x.shape) - 1 else ()),
    )
    return [
        Part("fill", max(zeros / card.bandwidth, 1e-10), 0.0, zeros),
        Part("elementwise-strided", base, 0.0, copied, tags=tags),
    ]


def repeat(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    if x is None:
        return []
    times = prod(args.integers(1)) or 1
    moved = float(x.nbytes + x.numel * x.item * times)
    base = max(moved / card.bandwidth, x.numel * times * STRIDED_INSTRUCTIONS / card.issue)
    return [Part("elementwise-strided", base, 0.0, moved, tags=("repeat", f"{x.item}-byte"))]


def roll(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    if x is None:
        return []
    passes = max(len(args.integers(2)), 1)
    moved = 2.0 * x.nbytes
    base = passes * max(moved / card.bandwidth, x.numel * STRIDED_INSTRUCTIONS / card.issue)
    return [Part("roll", base, 0.0, moved, features=(feature("passes", passes),))]


FILLS = (
    "zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full fill_ zero_ arange scalar_tensor eye "
    "linspace"
)
RANDOM = (
    "rand randn rand_like randn_like randint randint_like bernoulli bernoulli_ normal_ uniform_ random_ "
    "exponential_ multinomial"
)
FAMILY = {
    "_to_copy": to_copy, "clone": to_copy, "contiguous": to_copy, "copy_": copy_into, "native_dropout": dropout,
    "cat": concatenate, "stack": concatenate, "slice_backward": placed, "select_backward": placed,
    "constant_pad_nd": placed, "_local_scalar_dense": read_scalar, "repeat": repeat, "roll": roll,
    "masked_fill": masked_fill,
    **dict.fromkeys(FILLS.split(), fill), **dict.fromkeys(RANDOM.split(), random),
}  # fmt: skip
