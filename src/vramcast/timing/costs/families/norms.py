"""Layer, group, batch and RMS normalisation, forward and backward."""

from __future__ import annotations

from math import ceil, prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.elementwise import STRIDED_INSTRUCTIONS, made_contiguous
from vramcast.timing.costs.part import Family, Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor


def _rows(kind: str, card: Card, x: Tensor, row: int, reads: float, passes: float) -> Part:
    moved = reads + x.nbytes
    features = (feature("rows", x.numel / max(row, 1)), feature("row", row))
    base = max(passes * x.nbytes / card.bandwidth, 1e-10)
    return Part(kind, base, 8.0 * x.numel, moved, "f32", features, (f"{x.item}-byte",))


def layer_norm(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    if x is None:
        return []
    return [_rows("layer-norm", card, x, prod(args.integers(1)), float(x.nbytes), 2), *made_contiguous(card, [x])]


def rms_norm(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    if x is None:
        return []
    return [_rows("rms-norm", card, x, prod(args.integers(1)), float(x.nbytes), 2), *made_contiguous(card, [x])]


def _row_backward(kind: str, args: Arguments, card: Card) -> list[Part]:
    """The gradient of the input row by row; those of the weights column by column, which reads everything again."""
    dy, x = args.tensor(0), args.tensor(1)
    if dy is None or x is None:
        return []
    mask = args.args[-1] if isinstance(args.args[-1], list) else [True]
    weights = any(item is True for item in mask[1:])
    reads = float(dy.nbytes + x.nbytes)
    row = prod(args.integers(2))
    part = _rows(kind if weights else f"{kind}-input", card, x, row, reads, 5 if weights else 3)
    return [part, *made_contiguous(card, [dy, x])]


def layer_norm_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    return _row_backward("layer-norm-backward", args, card)


def rms_norm_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    return _row_backward("rms-norm-backward", args, card)


def _group(kind: str, args: Arguments, card: Card, first: int, reads: list[Tensor], passes: float) -> list[Part]:
    """Moments of each group, then the elements with offsets worked out for each."""
    x = reads[0]
    sizes = [value for value in args.args[first : first + 4] if isinstance(value, int)]
    batch, _, spatial, groups = sizes if len(sizes) == 4 else [x.shape[0], x.shape[1], prod(x.shape[2:]), 32]
    moved = float(sum(tensor.nbytes for tensor in reads) + x.nbytes)
    base = passes * x.nbytes / card.bandwidth + x.numel * STRIDED_INSTRUCTIONS / card.issue
    features = (feature("blocks", batch * groups), feature("spatial", spatial))
    part = Part(kind, base, 8.0 * x.numel, moved, "f32", features, (f"{x.item}-byte",), 3)
    return [part, *made_contiguous(card, reads)]


def group_norm(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    return [] if x is None else _group("group-norm", args, card, 3, [x], 1)


def group_norm_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    dy, x = args.tensor(0), args.tensor(1)
    return [] if x is None or dy is None else _group("group-norm-backward", args, card, 5, [dy, x], 2)


def _batch(kind: str, card: Card, reads: list[Tensor], passes: float, cycles: float) -> list[Part]:
    """Statistics of each channel, then the elements. Where channels lie apart, one block takes a whole channel and gets
    through it at so many cycles an element: few channels leave the card waiting for it."""
    x = reads[-1]
    channels = x.shape[1] if len(x.shape) > 1 else 1
    last = bool(x.order) and x.order[-1] == 1
    length = x.numel // max(channels, 1)
    moved = float(sum(tensor.nbytes for tensor in reads) + x.nbytes)
    features = (feature("channels", channels), feature("length", length), feature("spatial", prod(x.shape[2:])))
    base = passes * x.nbytes / card.bandwidth
    if not last:
        base = max(base, ceil(channels / (2 * card.sms)) * length * cycles / card.clock)
    tags = (f"{x.item}-byte", x.dtype)
    part = Part(f"{kind}-{'nhwc' if last else 'nchw'}", base, 8.0 * x.numel, moved, "f32", features, tags)
    odd = [tensor for tensor in reads if not tensor.dense or tensor.order != x.order]
    return [part, *made_contiguous(card, odd)]


def _batch_forward(kind: str) -> Family:
    def forward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
        x = args.tensor(0)
        return [] if x is None else _batch(kind, card, [x], 3, 1.2)

    return forward


def _batch_backward(kind: str) -> Family:
    def backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
        first, second = args.tensor(0), args.tensor(1)
        return [] if first is None or second is None else _batch(kind, card, [first, second], 5, 2.8)

    return backward


FAMILY = {
    "native_layer_norm": layer_norm, "native_layer_norm_backward": layer_norm_backward,
    "_fused_rms_norm": rms_norm, "_fused_rms_norm_backward": rms_norm_backward,
    "native_group_norm": group_norm, "native_group_norm_backward": group_norm_backward,
    "cudnn_batch_norm": _batch_forward("cudnn-batch-norm"),
    "cudnn_batch_norm_backward": _batch_backward("cudnn-batch-norm-backward"),
    "native_batch_norm": _batch_forward("batch-norm"), "_native_batch_norm_legit": _batch_forward("batch-norm"),
    "_batch_norm_with_update": _batch_forward("batch-norm"),
    "batch_norm_backward": _batch_backward("batch-norm-backward"),
    "native_batch_norm_backward": _batch_backward("batch-norm-backward"),
}  # fmt: skip
