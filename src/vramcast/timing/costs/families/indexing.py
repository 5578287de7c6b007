"""Embeddings, gathers and scatters, and what sorts indices first."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.elementwise import STRIDED_INSTRUCTIONS, broadcast, made_contiguous
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor

# Up to so many indices the gradient of an embedding is added up without sorting them
# (aten/src/ATen/native/cuda/Embedding.cu).
_UNSORTED_INDICES = 3072


_SORTED_BY_ONE_BLOCK = 2048


def _sorting(card: Card, count: int) -> Part:
    """Keys of eight bytes and their places, a pass for each digit."""
    moved = 2.0 * 16 * count
    return Part("index-sort", max(8 * moved / card.bandwidth, 1e-10), 0.0, moved, kernels=12)


def embedding(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    weight, indices = args.tensor(0), args.tensor(1)
    if weight is None or indices is None:
        return []
    rows = indices.numel * weight.shape[-1] * weight.item
    distinct = min(rows, weight.nbytes)
    moved = float(distinct + rows + indices.nbytes)
    return [Part("gather", max(2 * rows / card.bandwidth, 1e-10), 0.0, moved, tags=("embedding",))]


def embedding_bag(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    weight, indices, offsets = args.tensor(0), args.tensor(1), args.tensor(2)
    if weight is None or indices is None or offsets is None:
        return []
    rows = indices.numel * weight.shape[-1] * weight.item
    out = offsets.numel * weight.shape[-1] * weight.item
    moved = float(min(rows, weight.nbytes) + out + 2 * indices.nbytes)
    return [Part("gather", (rows + out) / card.bandwidth, 0.0, moved, tags=("embedding-bag",))]


def embedding_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """A gradient of zeros for every row, then the rows that were used."""
    grad, indices = args.tensor(0), args.tensor(1)
    count = args.args[2] if len(args.args) > 2 and isinstance(args.args[2], int) else 0
    if grad is None or indices is None:
        return []
    padded = args.args[3] if len(args.args) > 3 else -1
    return _scattered_rows(card, grad, indices.numel, count, sorts=indices.numel > _UNSORTED_INDICES or padded != -1)


def _scattered_rows(card: Card, grad: Tensor, indices: int, rows: int, *, sorts: bool) -> list[Part]:
    width = grad.shape[-1] if grad.shape else 1
    zeros = float(rows * width * grad.item)
    moved = 2.0 * grad.nbytes
    features = (feature("indices", indices), feature("rows", rows), feature("width", width))
    kind = "scatter-sorted" if sorts else "scatter-rows"
    parts = [
        Part("fill", max(zeros / card.bandwidth, 1e-10), 0.0, zeros),
        Part(kind, max(moved / card.bandwidth, 1e-10), 0.0, moved, features=features),
    ]
    if sorts:
        parts.append(_sorting(card, indices))
    return parts + made_contiguous(card, [grad])


def embedding_bag_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    grad, indices = args.tensor(0), args.tensor(1)
    rows = next((value for value in args.args if isinstance(value, int) and not isinstance(value, bool)), 0)
    sparse = any(value is True for value in args.args[7:10])
    if grad is None or indices is None:
        return []
    return _scattered_rows(card, grad, indices.numel, 0 if sparse else rows, sorts=True)


def _picked(x: Tensor, places: object) -> int:
    """Elements that x[places] has."""
    if not isinstance(places, list):
        return x.numel
    indices = [item for item in places if isinstance(item, Tensor)]
    kept = prod(size for dim, size in enumerate(x.shape) if dim >= len(places) or not isinstance(places[dim], Tensor))
    return kept * max(prod(broadcast(indices)), 1)


def _masked(card: Card, x: Tensor, mask: Tensor) -> list[Part]:
    """The mask is counted and scanned; how many are chosen is not in the text: half of them is the middle."""
    count = x.numel / 2
    base = max(2 * count * x.item / card.bandwidth, count * STRIDED_INSTRUCTIONS / card.issue)
    return [_counted(card, mask), Part("gather", max(base, 1e-10), 0.0, 0.0, tags=("index",))]


def _counted(card: Card, mask: Tensor) -> Part:
    """A mask becomes indices."""
    moved = 3.0 * mask.nbytes
    return Part("scan", max(moved / card.bandwidth, 1e-10), 0.0, moved, kernels=4)


def _masks(args: Arguments) -> list[Tensor]:
    places = args.args[1] if isinstance(args.args[1], list) else []
    return [item for item in places if isinstance(item, Tensor) and item.dtype in ("b8", "u8")]


def index(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    if x is None or len(args.args) < 2:
        return []
    masks = _masks(args)
    if masks:
        return _masked(card, x, masks[0])
    count = _picked(x, args.args[1])
    written = float(count * x.item)
    moved = written + min(written, float(x.nbytes)) + sum(tensor.nbytes for tensor in args.tensors[1:])
    base = max(2 * written / card.bandwidth, count * STRIDED_INSTRUCTIONS / card.issue)
    return [Part("gather", max(base, 1e-10), 0.0, moved, tags=("index",))]


def index_put(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """With accumulation: a copy of the tensor, the indices checked and sorted, the values added in order. A number of
    the host's is written through a mask by a fill."""
    x, values = args.tensor(0), args.tensor(2)
    if x is None or values is None or len(args.args) < 2:
        return []
    indices = [item for item in args.args[1] if isinstance(item, Tensor)] if isinstance(args.args[1], list) else []
    count = max(prod(broadcast(indices)), 1)
    width = values.numel // max(count, 1)
    moved = float(2 * values.nbytes)
    counted = [_counted(card, mask) for mask in _masks(args)] if values.device == "cuda" else []
    if len(args.args) > 3 and args.args[3] is True:
        features = (feature("indices", count), feature("rows", x.numel / max(width, 1)), feature("width", width))
        adding = Part(
            "scatter-sorted", max(moved / card.bandwidth, 1e-10), 0.0, moved, features=features, tags=("put",)
        )
        return [*counted, adding, _sorting(card, count), Part("index-checks", 1e-6, kernels=12)]
    base = max(moved / card.bandwidth, values.numel * STRIDED_INSTRUCTIONS / card.issue)
    return [*counted, Part("gather", max(base, 1e-10), 0.0, moved, tags=("put",))]


def index_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """index_put into a new tensor, accumulating: how the gradient of an indexed tensor is recorded. Where nobody
    records, autograd adds in place to zeros of its own and trusts the indices (`_index_put_impl_`, unsafe): no copy and
    no checks. Few indices are sorted by one block."""
    parts = []
    for part in index_put(args, card, tf32, cudnn_tf32):
        if part.kind == "index-sort":
            is_small = part.bytes <= _SORTED_BY_ONE_BLOCK * _sorting(card, 1).bytes
            parts.append(replace(part, kernels=3 if is_small else 8))
        elif part.kind != "index-checks":
            parts.append(part)
    return parts


def gather(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """gather, scatter, scatter_add, take_along_dim: an index for each element; index_select, index_add: one for each
    slice of the dimension."""
    tensors = args.tensors
    if not tensors:
        return []
    x = tensors[0]
    indices = next((tensor for tensor in tensors[1:] if tensor.dtype in ("i64", "i32")), x)
    dim = args.args[1] if len(args.args) > 1 and isinstance(args.args[1], int) else 0
    count = indices.numel
    if len(indices.shape) == 1 < len(x.shape):
        count *= x.numel // max(x.shape[dim], 1)
    moved = float(indices.nbytes + 2 * count * x.item)
    base = max(moved / card.bandwidth, count * STRIDED_INSTRUCTIONS / card.issue)
    return [Part("gather", max(base, 1e-10), 0.0, moved, tags=("elements",))]


def scatter_add_into(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    source = args.tensor(3)
    turned = source is not None and bool(source.order) and source.order[-1] != len(source.shape) - 1
    tags = ("scatter-add", *(("turned",) if turned else ()))
    return [replace(part, tags=tags) for part in gather(args, card, tf32, cudnn_tf32)]


def scatter_add(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Into a copy."""
    parts = scatter_add_into(args, card, tf32, cudnn_tf32)
    x = args.tensor(0)
    if x is not None:
        parts.append(Part("copy", max(2 * x.nbytes / card.bandwidth, 1e-10), 0.0, 2.0 * x.nbytes))
    return parts


FAMILY = {
    "embedding": embedding, "embedding_dense_backward": embedding_backward, "_embedding_bag": embedding_bag,
    "_embedding_bag_forward_only": embedding_bag, "_embedding_bag_backward": embedding_bag_backward,
    "_embedding_bag_dense_backward": embedding_bag_backward, "index": index, "_unsafe_index": index,
    "index_put": index_backward, "index_put_": index_put, "_unsafe_index_put": index_put, "gather": gather,
    "scatter": gather, "scatter_": gather, "index_select": gather, "take_along_dim": gather,
    "scatter_add": scatter_add, "scatter_add_": scatter_add_into, "index_add": scatter_add,
    "index_add_": scatter_add_into,
}  # fmt: skip
