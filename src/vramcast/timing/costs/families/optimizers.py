"""Operators on lists of tensors, and the updates of optimizers."""

from __future__ import annotations

from math import ceil

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor

# One launch of a foreach kernel takes at most this many chunks of 65,536 elements, and so many tensors.
_CHUNK = 65536
_CHUNKS_A_LAUNCH = 320
_UPDATE_INSTRUCTIONS = 60.0
_BLOCKWISE_INSTRUCTIONS = 400.0


def _on_device(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.device == "cuda"]


def _list_part(kind: str, card: Card, first: list[Tensor], moved: float, tags: tuple[str, ...]) -> Part:
    chunks = sum(ceil(tensor.numel / _CHUNK) for tensor in first)
    launches = max(ceil(chunks / _CHUNKS_A_LAUNCH), ceil(len(first) / 40))
    features = (feature("tensors", len(first)),)
    return Part(kind, max(moved / card.bandwidth, 1e-10), 0.0, moved, "f32", features, tags, launches)


def foreach(name: str, args: Arguments, card: Card) -> list[Part]:
    """aten._foreach_*: every list is read; the first, or a new one, is written."""
    first = _on_device(args.tensor_list(0))
    if not first:
        return []
    tensors = _on_device(args.tensors)
    written = sum(tensor.nbytes for tensor in first)
    if "norm" in name:
        written = 0
    elif name == "_foreach_zero_":
        return [_list_part("foreach", card, first, float(written), (name,))]
    moved = float(sum(tensor.nbytes for tensor in tensors) + written)
    if name == "_foreach_copy_":
        moved -= written
    inner = name.removeprefix("_foreach_").rstrip("_")
    return [_list_part("foreach", card, first, moved, (inner, f"{inner}{'_' if name.endswith('_') else ''}"))]


def fused(name: str, args: Arguments, card: Card) -> list[Part]:
    """aten._fused_adam_ and its like: parameters, gradients and states read; all but the gradients written."""
    lists = [_on_device(args.tensor_list(index)) for index in range(5)]
    params, grads, states = lists[0], lists[1], lists[2:]
    if not params:
        return []
    states = [tensors for tensors in states if tensors and tensors[0].shape == params[0].shape]
    read = sum(tensor.nbytes for tensors in (params, grads, *states) for tensor in tensors)
    written = sum(tensor.nbytes for tensors in (params, *states) for tensor in tensors)
    return [_list_part("fused-optimizer", card, params, float(read + written), (name, f"{params[0].item}-byte"))]


def unscale(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """GradScaler: gradients read and written once."""
    first = _on_device(args.tensor_list(0))
    if not first:
        return []
    return [_list_part("foreach", card, first, 2.0 * sum(tensor.nbytes for tensor in first), ("unscale",))]


def blockwise(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """bitsandbytes' 8-bit updates: gradient, parameter, states of a byte, a scale for each block of 256."""
    tensors = [tensor for tensor in args.tensors if tensor.device == "cuda" and tensor.numel > 1]
    if len(tensors) < 3:
        return []
    count = tensors[0].numel
    moved = float(sum(tensor.nbytes for tensor in tensors) + sum(tensor.nbytes for tensor in tensors[1:]))
    base = max(moved / card.bandwidth, count * _BLOCKWISE_INSTRUCTIONS / card.issue)
    return [Part("8-bit-optimizer", base, 0.0, moved)]


def plain_update(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    tensors = [tensor for tensor in args.tensors if tensor.device == "cuda" and tensor.numel > 1]
    if len(tensors) < 3:
        return []
    moved = float(2 * sum(tensor.nbytes for tensor in tensors) - tensors[0].nbytes)
    base = max(moved / card.bandwidth, tensors[0].numel * _UPDATE_INSTRUCTIONS / card.issue)
    return [Part("32-bit-optimizer", base, 0.0, moved)]


FAMILY = {
    "_amp_foreach_non_finite_check_and_unscale_": unscale,
    "optimizer_update_8bit_blockwise": blockwise,
    "optimizer_update_32bit": plain_update,
}
