"""Fused attention, by the backend that runs it."""

from __future__ import annotations

from math import ceil

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


def attention(backend: str, backward: bool, args: Arguments, card: Card) -> list[Part]:
    first = 1 if backward else 0
    query, keys, values = args.tensor(first), args.tensor(first + 1), args.tensor(first + 2)
    if query is None or keys is None or values is None or len(query.shape) != 4:
        return []
    batch, heads, rows, depth = query.shape
    columns = keys.shape[2]
    side = 1 if backward else 0
    causal = _value(args, _CAUSAL_AT[backend][side], "is_causal") is True
    dropped = _value(args, _DROPOUT_AT[backend][side], "dropout_p")
    bias = _value(args, _BIAS_AT[backend][side], "attn_bias")
    unit = query.dtype
    if unit == "f32" and card.has_tf32 and backend == "efficient":
        # Its kernels multiply in TF32 only where PyTorch's setting allows it, which it does not by default.
        unit = "f32"
    share = (0.5 + 0.5 / max(columns, 1)) if causal and rows == columns else 1.0
    products = 5 if backward else 2
    flops = 2.0 * products * batch * heads * rows * columns * depth * share
    moved = float(query.nbytes + keys.nbytes + values.nbytes + query.numel * query.item)
    if backward:
        moved *= 2
    bias_bytes = float(bias.nbytes) if isinstance(bias, Tensor) else 0.0
    row_blocks, column_blocks = ceil(rows / _BLOCK), ceil(columns / _BLOCK)
    blocks = row_blocks * column_blocks * (0.5 + 0.5 / column_blocks if causal and rows == columns else 1.0)
    deep = ceil(depth / 64) * 64
    tiled = 2.0 * products * batch * heads * blocks * _BLOCK * _BLOCK * deep / card.rate(unit)
    parallel = batch * heads * row_blocks
    if parallel < card.sms:
        tiled *= card.sms / parallel
    base = max(tiled, (moved + bias_bytes) / card.bandwidth)
    tags = [f"depth{deep}", "half" if query.item == 2 else query.dtype]
    tags += ["causal"] * causal
    tags += ["dropout"] * (isinstance(dropped, float) and dropped > 0)
    tags += ["bias"] * (bias_bytes > 0)
    tags += ["shared-keys"] * (keys.shape[1] != heads)
    features = (feature("columns", columns), feature("rows", rows), feature("depth", depth))
    kind = f"attention-{backend}{'-backward' if backward else ''}"
    return [Part(kind, base, flops, moved + bias_bytes, unit, features, tuple(tags), 4 if backward else 2)]


_NAMES = {
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_flash_attention": "flash",
}


def _for(backend: str, backward: bool) -> Family:
    def costs(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
        return attention(backend, backward, args, card)

    return costs


FAMILY = {name: _for(backend, False) for name, backend in _NAMES.items()} | {
    f"{name}_backward": _for(backend, True) for name, backend in _NAMES.items()
}
