"""Convolutions as the implicit matrix products cuDNN computes, forward and the two gradients apart."""

from __future__ import annotations

from math import prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.elementwise import STRIDED_INSTRUCTIONS, made_contiguous
from vramcast.timing.costs.families.gemm import alignment, tiled_seconds, unit_of
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor, Value

# Instructions of depthwise kernels for each element of the result and for each place of the window. PyTorch's own
# serve FP32 and BF16 where channels come first, and strided FP16; cuDNN's the rest.
_NATIVE_DEPTHWISE = (180.0, 16.0)
_CUDNN_DEPTHWISE = (40.0, 8.0)
# Larger windows than its own kernels take (those of FP32 weight gradients less) go to a general one.
_DIRECT_DEPTHWISE = (0.0, 70.0)
_LARGEST_DEPTHWISE = 49
_LARGEST_DEPTHWISE_FP32_GRADIENT = 25
# cuDNN has kernels that take all groups at once: for small windows, as many channels in as out, a power of two, and
# enough groups. Other numbers of channels are widened to one, where the window is one of three and, for gradients of
# the data, as many channels go in as come out. All else is a convolution for each group, one after the other.
_GROUPED_WINDOW = 25
_GROUPED_CHANNELS = {2: (4, 8, 16, 32), 4: (4, 8, 16, 32, 64, 128, 256)}
_FEWEST_GROUPS = {2: 5, 4: 4}
_WIDENED_WINDOW = 9
_WIDENED_CHANNELS = 256
# Where channels come last and their number fits no kernel, a general copy widens each group: so many instructions for
# each element of the widened tensors.
_WIDENING_INSTRUCTIONS = 220.0
_SHORTEST_KERNEL_SECONDS = 1e-6
# Times its ideal that a convolution takes on the FP32 units.
_PLAIN_SHARE = 4.0
# In half precision longer windows than this have no kernel with tensor cores; those that are left reach so much of the
# FP32 units, one group after the other.
_LONGEST_HALF_WINDOW = 64
_LONG_WINDOW_SHARE = 0.25


TURNED = "turned"
"""A keyword that is no argument of the operator's: for each product that a call makes, whether operands are turned."""


def _sizes(value: Value, count: int, default: int) -> list[int]:
    sizes = [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
    if len(sizes) == 1:
        sizes = sizes * count
    return sizes if len(sizes) == count else [default] * count


def _channels_last(tensor: Tensor) -> bool:
    """Signals have no such layout: theirs are made contiguous first."""
    order = tensor.order
    return tensor.strides is not None and len(tensor.shape) > 3 and bool(order) and order[-1] == 1


class _Shape:
    """Sizes of one convolution, from its input, weight and result."""

    def __init__(
        self, x: Tensor, weight: Tensor, y: tuple[int, ...], groups: int, transposed: bool, dilation: int
    ) -> None:
        self.x, self.weight = x, weight
        self.dilation = dilation
        self.x_shape, self.y_shape = x.shape, y
        self.groups = groups
        self.item = x.item
        # A transposed convolution is the data gradient of the one it transposes.
        small, large = (y, x.shape) if transposed else (x.shape, y)
        self.c_in = small[1] // groups
        self.c_out = large[1] // groups
        self.window = prod(weight.shape[2:])
        self.positions = large[0] * prod(large[2:])
        self.x_bytes = float(x.nbytes)
        self.y_bytes = float(prod(y) * x.item)
        self.w_bytes = float(weight.nbytes)
        self.bytes = self.x_bytes + self.y_bytes + self.w_bytes
        self.flops = 2.0 * self.positions * self.c_out * groups * self.c_in * self.window
        self.last = _channels_last(x) or _channels_last(weight)
        self.strided = prod(x.shape[2:]) != prod(y[2:])
        self.spatial = prod(x.shape[2:])


def _part(card: Card, shape: _Shape, direction: str, cudnn_tf32: bool, turned: bool | None) -> Part:
    """`turned`: whether cuDNN turns the operands to channels last; None where that is not known."""
    x = shape.x
    unit = unit_of(x.dtype, cudnn_tf32 and card.has_tf32)
    layout = "nhwc" if shape.last else "nchw"
    pointwise = shape.window == 1
    tags = [x.dtype if x.item != 2 else "half", layout, f"{len(x.shape) - 2}d"]
    if shape.strided:
        tags.append("strided")
    if pointwise:
        tags.append("1x1")
    if shape.dilation > 1:
        tags.append("dilated")
    if shape.c_in == 1 and shape.c_out <= 2 and shape.groups > 1:
        return _depthwise(card, shape, direction, layout, tags)
    if shape.groups > 1:
        return _grouped(card, shape, direction, unit, layout, tags)
    # Tensor cores take channels in whole vectors: an image of 3 counts as one of 4 or 8.
    vector = 16 // shape.item
    c_in, c_out = _whole(shape.c_in, vector), _whole(shape.c_out, vector)
    kernels = 1
    windows = not shape.last and not pointwise and shape.spatial > 1
    if windows and turned is False:
        return _as_it_lies(card, shape, direction, unit, tags)
    if pointwise and not shape.strided and not shape.last:
        # A matrix product for each image, its rows as long as the image has places.
        batch = shape.x_shape[0]
        m, n, k = {"fwd": (c_out, shape.spatial, c_in), "dgrad": (c_in, shape.spatial, c_out)}.get(
            direction, (c_out, c_in, shape.spatial)
        )
        base = tiled_seconds(card, batch, m, n, k, unit, splits=False)
        tags.append(f"rows{alignment(shape.spatial, shape.item)}")
    else:
        m, n, k = _product(shape, direction, c_in, c_out)
        base = tiled_seconds(card, 1, m, n, k, unit, splits=direction == "wgrad")
    # Where tiles would be nearly empty, the FP32 units are as good.
    base = min(base, shape.flops * _PLAIN_SHARE / card.rate("f32"))
    base = max(base, shape.bytes / card.bandwidth)
    if windows:
        # Tensor core kernels want channels last: the operands are turned, and the result turned back. So recorded
        # convolutions of windows launch three to five kernels each way.
        base += 2 * shape.bytes / card.bandwidth
        kernels = 3
    few = min(shape.c_in, shape.c_out)
    tags.append("aligned" if few % 8 == 0 else "even" if few % 4 == 0 else "odd")
    tags.append(f"{tags[0]}/{layout}/{'1x1' if pointwise else 'window'}")
    idle = card.sms * 128 * 128 / max(m * n, 1)
    features = (feature("k", k), feature("few", few), feature("spatial", shape.spatial), feature("idle", idle))
    return Part(f"conv-{direction}", base, shape.flops, shape.bytes, unit, features, tuple(tags), kernels)


def _as_it_lies(card: Card, shape: _Shape, direction: str, unit: str, tags: list[str]) -> Part:
    """Without workspace no operand is turned: one kernel, on the FP32 units where the numbers are of 32 bits. That of a
    weight's gradient adds up where it has cleared first."""
    m, n, k = _product(shape, direction, shape.c_in, shape.c_out)
    plain = "f32" if shape.item == 4 else unit
    base = tiled_seconds(card, 1, m, n, k, plain, splits=direction == "wgrad")
    base = max(min(base, shape.flops * _PLAIN_SHARE / card.rate("f32")), shape.bytes / card.bandwidth)
    features = (feature("k", k), feature("few", min(shape.c_in, shape.c_out)), feature("spatial", shape.spatial))
    kernels = 2 if direction == "wgrad" else 1
    return Part(f"direct-{direction}", base, shape.flops, shape.bytes, plain, features, tuple(tags), kernels)


def _product(shape: _Shape, direction: str, c_in: int, c_out: int) -> tuple[int, int, int]:
    """Rows, columns and depth of the implicit product of one group."""
    if direction == "dgrad":
        m = shape.x_shape[0] * shape.spatial
        return (min(m, shape.positions) if shape.strided else m), shape.c_in, c_out * shape.window
    if direction == "wgrad":
        return shape.c_out, c_in * shape.window, shape.positions
    return shape.positions, shape.c_out, c_in * shape.window


def _grouped(card: Card, shape: _Shape, direction: str, unit: str, layout: str, tags: list[str]) -> Part:
    """More than one group: by one kernel for all of them, after widening each, or one group after the other."""
    few = min(shape.c_in, shape.c_out)
    moved = shape.bytes / card.bandwidth
    item = min(shape.item, 4)
    if (
        shape.c_in == shape.c_out
        and shape.c_in in _GROUPED_CHANNELS.get(item, ())
        and 1 < shape.window <= _GROUPED_WINDOW
        and shape.groups >= _FEWEST_GROUPS[item]
    ):
        m, n, k = _product(shape, direction, shape.c_in, shape.c_out)
        base = max(tiled_seconds(card, shape.groups, m, n, k, unit, splits=direction == "wgrad"), moved)
        base += 0.0 if shape.last else 2 * moved
        features = (feature("few", few), feature("spatial", shape.spatial), feature("groups", shape.groups))
        kernels = 1 if shape.last else 4
        return Part(f"grouped-{direction}", base, shape.flops, shape.bytes, unit, features, tuple(tags), kernels)
    wide = max(_power_of_two(shape.c_in), _power_of_two(shape.c_out))
    small = 1 < shape.window <= _WIDENED_WINDOW and wide > few and wide <= _WIDENED_CHANNELS
    if small and (direction == "fwd" or (direction == "dgrad" and shape.c_in == shape.c_out)):
        m, n, k = _product(shape, direction, wide, wide)
        base = max(tiled_seconds(card, shape.groups, m, wide if n < wide else n, k, unit), moved)
        if shape.last:
            elements = shape.bytes / shape.item * wide / few
            base += elements * _WIDENING_INSTRUCTIONS / card.issue
            return Part("widened", base, shape.flops, shape.bytes, unit, (), (tags[0],), 7)
        base += 2 * moved * wide / few
        return Part("widened-nchw", base, shape.flops, shape.bytes, unit, (), (tags[0], direction), 7)
    if direction == "fwd" and shape.item == 2 and shape.window > _LONGEST_HALF_WINDOW:
        base = shape.flops / (_LONG_WINDOW_SHARE * card.rate("f32"))
        return Part("long-window", base, shape.flops, shape.bytes, "f32", (), (), 3 * shape.groups)
    m, n, k = _product(shape, direction, shape.c_in, shape.c_out)
    kernels = shape.groups * (3 if shape.last else 4)
    group_seconds = max(tiled_seconds(card, 1, m, n, k, unit, splits=direction == "wgrad"), moved / shape.groups)
    base = shape.groups * group_seconds + 2 * moved + kernels * _SHORTEST_KERNEL_SECONDS
    both = (feature("window", shape.window), feature("few", few))
    return Part(f"looped-{direction}", base, shape.flops, shape.bytes, unit, both, tuple(tags), kernels)


def _power_of_two(channels: int) -> int:
    return 1 << (channels - 1).bit_length()


def _whole(channels: int, vector: int) -> int:
    return -(-channels // vector) * vector


def _depthwise(card: Card, shape: _Shape, direction: str, layout: str, tags: list[str]) -> Part:
    """One input channel for each output channel: bound by the instructions of each window, or by memory."""
    dtype = shape.x.dtype
    cudnn = shape.last or (dtype == "f16" and not shape.strided)
    each, window = _CUDNN_DEPTHWISE if cudnn else _NATIVE_DEPTHWISE
    most = _LARGEST_DEPTHWISE_FP32_GRADIENT if direction == "wgrad" and dtype == "f32" else _LARGEST_DEPTHWISE
    by = "cudnn" if cudnn else "native"
    if cudnn and shape.window > most:
        by, (each, window) = "direct", _DIRECT_DEPTHWISE
    elements = shape.y_bytes / shape.item if direction != "dgrad" else shape.x_bytes / shape.item
    base = max(elements * (each + window * shape.window) / card.issue, shape.bytes / card.bandwidth)
    features = [feature("window", shape.window), feature("spatial", shape.spatial), feature("channels", shape.groups)]
    if direction == "wgrad" and not cudnn:
        # A block for each place of each window.
        features.append(feature("idle", 8 * card.sms / (shape.groups * shape.window)))
    kind = f"depthwise-{by}-{direction}"
    return Part(kind, base, shape.flops, shape.bytes, "f32", tuple(features), (*tags, f"{layout}/{dtype}"))


def output_shape(x: Tensor, weight: Tensor, args: Arguments) -> tuple[int, ...]:
    """Output shape of aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding,
    groups)."""
    count = len(x.shape) - 2
    values = (*args.args, *([None] * 9))
    stride, padding = _sizes(values[3], count, 1), _sizes(values[4], count, 0)
    dilation, output_padding = _sizes(values[5], count, 1), _sizes(values[7], count, 0)
    groups = values[8] if isinstance(values[8], int) else 1
    spatial = []
    for dim in range(count):
        size, window = x.shape[2 + dim], dilation[dim] * (weight.shape[2 + dim] - 1) + 1
        if values[6] is True:
            spatial.append((size - 1) * stride[dim] - 2 * padding[dim] + window + output_padding[dim])
        else:
            spatial.append((size + 2 * padding[dim] - window) // stride[dim] + 1)
    channels = weight.shape[1] * groups if values[6] is True else weight.shape[0]
    return (x.shape[0], channels, *spatial)


def _turned(args: Arguments) -> list[bool | None]:
    known = args.kwargs.get(TURNED)
    return [value if isinstance(value, bool) else None for value in known] if isinstance(known, list) else [None] * 2


def forward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x, weight = args.tensor(0), args.tensor(1)
    if x is None or weight is None or len(x.shape) < 3:
        return []
    values = (*args.args, *([None] * 9))
    transposed, groups = values[6] is True, values[8] if isinstance(values[8], int) else 1
    y = output_shape(x, weight, args)
    shape = _Shape(x, weight, y, groups, transposed, max(_sizes(values[5], len(x.shape) - 2, 1)))
    turned = _turned(args)[0]
    parts = [_part(card, shape, "dgrad" if transposed else "fwd", cudnn_tf32, turned)]
    parts += made_contiguous(card, [tensor for tensor in (x, weight) if not tensor.dense])
    if isinstance(values[2], Tensor):
        moved = 2 * shape.y_bytes
        base = max(moved / card.bandwidth, prod(y) * STRIDED_INSTRUCTIONS / card.issue)
        parts.append(Part("elementwise-strided", base, 0.0, moved, tags=("conv-bias",)))
    return parts


def backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """convolution_backward(dy, x, weight, bias sizes, stride, padding, dilation, transposed, output_padding, groups,
    [dx, dw, db])."""
    dy, x, weight = args.tensor(0), args.tensor(1), args.tensor(2)
    if dy is None or x is None or weight is None or len(x.shape) < 3:
        return []
    values = (*args.args, *([None] * 11))
    groups = values[9] if isinstance(values[9], int) else 1
    mask = values[10] if isinstance(values[10], list) else [True, True, True]
    shape = _Shape(x, weight, dy.shape, groups, values[7] is True, max(_sizes(values[6], len(x.shape) - 2, 1)))
    parts = []
    turned = _turned(args)
    if mask[0] is True:
        parts.append(_part(card, shape, "fwd" if values[7] is True else "dgrad", cudnn_tf32, turned[0]))
    if mask[1] is True:
        parts.append(_part(card, shape, "wgrad", cudnn_tf32, turned[1]))
    if len(mask) > 2 and mask[2] is True:
        moved = float(dy.nbytes)
        direction = "outer" if shape.last else "inner"
        features = (feature("outputs", dy.shape[1]), feature("length", dy.numel / max(dy.shape[1], 1)))
        parts.append(
            Part(f"reduce-{direction}", moved / card.bandwidth, float(dy.numel), moved, "f32", features, ("bias-grad",))
        )
    return parts + made_contiguous(card, [tensor for tensor in (dy, x) if not tensor.dense])


FAMILY = {
    "convolution": forward, "_convolution": forward, "cudnn_convolution": forward, "convolution_overrideable": forward,
    "convolution_backward": backward,
}  # fmt: skip
