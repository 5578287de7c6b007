"""Operators of particular networks: experts, deformable convolutions, warping, rearranged images."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.elementwise import STRIDED_INSTRUCTIONS
from vramcast.timing.costs.families.gemm import product
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor, Value

# A sample between four neighbours: their addresses, weights and borders.
_SAMPLE_INSTRUCTIONS = 250.0
# One block's cycles for a box, and for each box that this one is compared with, read off the H200's times.
_BOX_CYCLES = 130.0
_PAIR_CYCLES = 0.08
# No kernel is shorter.
_LEAST_SECONDS = 1.5e-6
# Keys and places of a random order are read and written once for each digit of the keys.
_SORT_PASSES = 8
_ONE_BLOCK = 2048


def grouped_product(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Rows of one matrix, each with the matrix of its expert: as one product of all rows, reading every expert."""
    rows, experts = args.tensor(0), args.tensor(1)
    if rows is None or experts is None or len(experts.shape) != 3 or len(rows.shape) != 2:
        return []
    expert = Tensor(experts.dtype, experts.shape[1:], experts.strides[1:] if experts.strides else None)
    return [product(card, rows, expert, tf32=tf32, extra=("grouped",), added=float(experts.nbytes - expert.nbytes))]


def _sampled(kind: str, card: Card, samples: float, tensors: list[Tensor], written: float) -> Part:
    moved = float(sum(tensor.nbytes for tensor in tensors)) + written
    base = max(moved / card.bandwidth, samples * _SAMPLE_INSTRUCTIONS / card.issue)
    return Part(kind, max(base, 1e-10), 0.0, moved)


def deformable(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """torchvision's: windows are sampled into columns, then multiplied by the weight."""
    return _deformable(args, card, args.tensor(0), args.tensor(1), args.tensor(2), tf32, 1)


def deformable_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """The columns three times over: for the data, the offsets and the weight."""
    return _deformable(args, card, args.tensor(1), args.tensor(2), args.tensor(3), tf32, 3)


def _deformable(
    args: Arguments, card: Card, x: Tensor | None, weight: Tensor | None, offset: Tensor | None, tf32: bool, times: int
) -> list[Part]:
    if x is None or weight is None or offset is None:
        return []
    places = offset.shape[0] * prod(offset.shape[2:])
    depth = x.shape[1] * prod(weight.shape[2:])
    columns = Tensor(x.dtype, (places, depth))
    sampled = _sampled("deformable", card, float(places * depth), [x, offset], float(columns.nbytes))
    return [sampled, product(card, columns, Tensor(x.dtype, (depth, weight.shape[0])), tf32=tf32)] * times


def sampled_grid(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Grid sampling: an element of the result from four of the input."""
    x, grid = args.tensor(0), args.tensor(1)
    if x is None or grid is None or len(x.shape) < 3:
        return []
    count = x.shape[1] * prod(grid.shape[:-1])
    return [_sampled("grid-sample", card, float(count), [x, grid], float(count * x.item))]


def sampled_grid_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    tensors = args.tensors
    count = max((tensor.numel for tensor in tensors), default=0)
    return [_sampled("grid-sample", card, 2.0 * count, tensors, float(sum(tensor.nbytes for tensor in tensors)))]


def regions(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """roi_align(features, boxes, scale, height, width, samples, …): samples squared for each place of each box."""
    return _regions("regions", args, card, args.args[5:6], 0)


def regions_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """_roi_align_backward(gradient, boxes, scale, height, width, images, channels, rows, columns, samples, …): each
    sample is added to four places."""
    image = prod(value for value in args.args[5:9] if isinstance(value, int) and not isinstance(value, bool))
    return _regions("regions-backward", args, card, args.args[9:10], image)


def _regions(kind: str, args: Arguments, card: Card, samples: Sequence[Value], image: int) -> list[Part]:
    x, boxes = args.tensor(0), args.tensor(1)
    sizes = [value for value in args.args[3:5] if isinstance(value, int) and not isinstance(value, bool)]
    if x is None or boxes is None or len(sizes) < 2:
        return []
    each = samples[0] if samples and isinstance(samples[0], int) and samples[0] > 0 else 2
    count = boxes.shape[0] * x.shape[1] * sizes[0] * sizes[1]
    part = _sampled(kind, card, float(count * each**2), [boxes], 2.0 * count * x.item)
    zeros = float(image * x.item)
    return [part, Part("fill", max(zeros / card.bandwidth, 1e-10), 0.0, zeros)] if image else [part]


def suppressed(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """nms: all pairs of boxes compared, then one block that goes through the boxes and their comparisons."""
    boxes = args.tensor(0)
    if boxes is None or not boxes.shape:
        return []
    count = boxes.shape[0]
    cycles = count * (_BOX_CYCLES + count * _PAIR_CYCLES)
    return [Part("suppressed", max(cycles / card.clock, 1e-10), kernels=12)]


def rearranged(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """pixel_shuffle and its like: every element once, at another place."""
    x = args.tensor(0)
    if x is None:
        return []
    moved = 2.0 * x.nbytes
    base = max(moved / card.bandwidth, x.numel * STRIDED_INSTRUCTIONS / card.issue)
    return [Part("elementwise-strided", max(base, 1e-10), 0.0, moved, tags=("copy", f"{x.item}-byte"))]


def windows(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """im2col: every element as often as windows hold it, by a kernel for each image of the batch."""
    x = args.tensor(0)
    if x is None or not x.shape:
        return []
    images = x.shape[0] if len(x.shape) == 4 else 1
    count = x.numel * (prod(args.integers(1)) or 1)
    moved = float(x.nbytes + count * x.item)
    base = max(moved / card.bandwidth, count * STRIDED_INSTRUCTIONS / card.issue, images * _LEAST_SECONDS)
    return [Part("windows", max(base, 1e-10), 0.0, moved, tags=(f"{x.item}-byte",), kernels=images)]


def shuffled(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """randperm: random keys, which are sorted: a few by one block, more of them in passes over the digits."""
    count = next((value for value in args.args if isinstance(value, int)), 0)
    if "cuda" not in str(args.kwargs.get("device", "")):
        return []
    moved = 16.0 * count * _SORT_PASSES
    return [Part("shuffled", max(moved / card.bandwidth, 1e-10), 0.0, moved, kernels=5 if count <= _ONE_BLOCK else 16)]


def chosen(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """nonzero, masked_select: the mask is counted, then scanned; how much is chosen is not in the text."""
    tensors = args.tensors
    if not tensors:
        return []
    moved = 3.0 * sum(tensor.nbytes for tensor in tensors)
    return [Part("scan", max(moved / card.bandwidth, 1e-10), 0.0, moved, kernels=4)]


def steps_of_alignment(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """CTC loss: one kernel that goes through the frames one after the other."""
    scores = max(args.tensors, key=lambda tensor: tensor.numel, default=None)
    if scores is None:
        return []
    moved = 2.0 * scores.nbytes
    frames = max(scores.shape, default=1)
    base = max(moved / card.bandwidth, frames * 1e-6)
    return [Part("ctc", base, 0.0, moved, features=(feature("frames", frames),))]


FAMILY = {
    "_grouped_mm": grouped_product, "deform_conv2d": deformable, "_deform_conv2d_backward": deformable_backward,
    "cudnn_grid_sampler": sampled_grid, "grid_sampler_2d": sampled_grid, "grid_sampler_3d": sampled_grid,
    "cudnn_grid_sampler_backward": sampled_grid_backward, "grid_sampler_2d_backward": sampled_grid_backward,
    "grid_sampler_3d_backward": sampled_grid_backward, "roi_align": regions, "_roi_align_backward": regions_backward,
    "nms": suppressed,
    "pixel_shuffle": rearranged, "pixel_unshuffle": rearranged, "channel_shuffle": rearranged,
    "reflection_pad1d": rearranged, "reflection_pad2d": rearranged, "reflection_pad1d_backward": rearranged,
    "reflection_pad2d_backward": rearranged, "replication_pad2d": rearranged, "replication_pad2d_backward": rearranged,
    "im2col": windows, "randperm": shuffled, "col2im": rearranged, "nonzero": chosen, "masked_select": chosen,
    "_ctc_loss": steps_of_alignment, "_ctc_loss_backward": steps_of_alignment,
}  # fmt: skip
