"""Fused attention, by the backend that runs it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.part import Family, Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor

_BLOCK = 128
# Where each backend's arguments say that the mask is causal: forward, backward.
_CAUSAL_AT = {"cudnn": (6, 14), "efficient": (6, 11), "flash": (4, 11)}
_DROPOUT_AT = {"cudnn": (5, 13), "efficient": (5, 9), "flash": (3, 10)}
_BIAS_AT = {"cudnn": (3, 8), "efficient": (3, 4), "flash": (None, None)}


def _value(args: Arguments, place: int | None, name: str) -> object:
    if name in args.kwargs:
        return args.kwargs[name]
    return args.args[place] if place is not None and place < len(args.args) else None


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is computed, whatever the order of dimensions is."""

    batch: int
    heads: int
    key_heads: int
    rows: int
    columns: int
    depth: int
    query: Tensor
    moved: float
    """Bytes of queries, keys, values and results."""
    causal: bool
    dropout: bool
    bias_bytes: float = 0.0
    seen: float = 1.0


def attention(backend: str, backward: bool, args: Arguments, card: Card) -> list[Part]:
    """PyTorch's own, with dimensions in the order batch, head, position, width."""
    first = 1 if backward else 0
    query, keys, values = args.tensor(first), args.tensor(first + 1), args.tensor(first + 2)
    if query is None or keys is None or values is None or len(query.shape) != 4:
        return []
    batch, heads, rows, depth = query.shape
    side = 1 if backward else 0
    dropped = _value(args, _DROPOUT_AT[backend][side], "dropout_p")
    bias = _value(args, _BIAS_AT[backend][side], "attn_bias")
    problem = _Problem(
        batch, heads, keys.shape[1], rows, keys.shape[2], depth, query, _moved(query, keys, values),
        causal=_value(args, _CAUSAL_AT[backend][side], "is_causal") is True,
        dropout=isinstance(dropped, float) and dropped > 0,
        bias_bytes=float(bias.nbytes) if isinstance(bias, Tensor) else 0.0,
    )  # fmt: skip
    return _parts(backend, backward, problem, card)


def _moved(query: Tensor, keys: Tensor, values: Tensor) -> float:
    return float(query.nbytes + keys.nbytes + values.nbytes + query.numel * query.item)


class _Places(NamedTuple):
    """Where arguments of a kernel are."""

    backward: bool
    offsets: int | None
    dropout: int | None
    causal: int
    window: int | None = None
    backend: str = "flash"
    """Whose calibration holds."""


def packed(places: _Places, args: Arguments, card: Card) -> list[Part]:
    """With dimensions in the order batch, position, head, width; or, with offsets, all sequences one after the other:
    they are taken to be equally long."""
    first = 1 if places.backward else 0
    query, keys, values = args.tensor(first), args.tensor(first + 1), args.tensor(first + 2)
    if query is None or keys is None or values is None:
        return []
    offsets = None if places.offsets is None else args.tensor(places.offsets)
    if len(query.shape) == 4:
        batch, rows, columns = query.shape[0], query.shape[1], keys.shape[1]
    elif offsets is not None:
        batch = max(offsets.shape[0] - 1, 1)
        rows, columns = (max(round(tensor.shape[0] / batch), 1) for tensor in (query, keys))
    else:
        return []
    dropped = _value(args, places.dropout, "dropout_p")
    problem = _Problem(
        batch, query.shape[-2], keys.shape[-2], rows, columns, query.shape[-1], query, _moved(query, keys, values),
        causal=_value(args, places.causal, "causal") is True, dropout=isinstance(dropped, float) and dropped > 0,
        seen=_seen(args, places.window, columns),
    )  # fmt: skip
    return _parts(places.backend, places.backward, problem, card)


def _seen(args: Arguments, window_at: int | None, columns: int) -> float:
    """The share of the keys that a window leaves to a query."""
    left = None if window_at is None else _value(args, window_at, "window_size_left")
    right = None if window_at is None else _value(args, window_at + 1, "window_size_right")
    if not isinstance(left, int) or left < 0:
        return 1.0
    return min(1.0, (left + 1 + (right if isinstance(right, int) and right > 0 else 0)) / max(columns, 1))


def _parts(backend: str, backward: bool, problem: _Problem, card: Card) -> list[Part]:
    rows, columns, depth, query = problem.rows, problem.columns, problem.depth, problem.query
    below = problem.causal and rows == columns
    unit = query.dtype
    products = 5 if backward else 2
    heads = problem.batch * problem.heads
    share = min(problem.seen, (0.5 + 0.5 / max(columns, 1)) if below else 1.0)
    flops = 2.0 * products * heads * rows * columns * depth * share
    moved = problem.moved * (2 if backward else 1) + problem.bias_bytes
    row_blocks, column_blocks = ceil(rows / _BLOCK), ceil(columns / _BLOCK)
    blocks = row_blocks * column_blocks * min(problem.seen, 0.5 + 0.5 / column_blocks if below else 1.0)
    deep = ceil(depth / 64) * 64
    tiled = 2.0 * products * heads * blocks * _BLOCK * _BLOCK * deep / card.rate(unit)
    parallel = heads * row_blocks
    if parallel < card.sms:
        tiled *= card.sms / parallel
    tags = [f"depth{deep}", "half" if query.item == 2 else query.dtype]
    tags += ["causal"] * problem.causal
    tags += ["dropout"] * problem.dropout
    tags += ["bias"] * (problem.bias_bytes > 0)
    tags += ["shared-keys"] * (problem.key_heads != problem.heads)
    features = (feature("columns", columns), feature("rows", rows), feature("depth", depth))
    kind = f"attention-{backend}{'-backward' if backward else ''}"
    base = max(tiled, moved / card.bandwidth)
    return [Part(kind, base, flops, moved, unit, features, tuple(tags), 4 if backward else 2)]


_NAMES = {
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_flash_attention": "flash",
}


def _for(backend: str, backward: bool) -> Family:
    def costs(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
        return attention(backend, backward, args, card)

    return costs


def _packed_for(places: _Places) -> Family:
    def costs(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
        return packed(places, args, card)

    return costs


# By PyTorch's name, flash-attn's, or TransformerEngine's.
_PACKED = {
    "_flash_attention_forward": _Places(False, 3, 7, 8),
    "_flash_attention_backward": _Places(True, 6, 10, 11),
    "_flash_attn_forward": _Places(False, None, 3, 5, 6),
    "_flash_attn_varlen_forward": _Places(False, 3, 7, 9, 10),
    "_flash_attn_backward": _Places(True, None, 9, 11, 12),
    "_flash_attn_varlen_backward": _Places(True, 9, 13, 15, 16),
    # Written for Hopper, as cuDNN's are.
    "_flash_attn_3_forward": _Places(False, 3, None, 8, 9, "cudnn"),
    "_flash_attn_3_backward": _Places(True, 6, None, 14, 15, "cudnn"),
    "_fused_attention_forward": _Places(False, 3, None, 4, None, "cudnn"),
    "_fused_attention_backward": _Places(True, 4, None, 5, None, "cudnn"),
}

FAMILY = (
    {name: _for(backend, False) for name, backend in _NAMES.items()}
    | {f"{name}_backward": _for(backend, True) for name, backend in _NAMES.items()}
    | {name: _packed_for(places) for name, places in _PACKED.items()}
)
