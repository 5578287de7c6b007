"""Plans that cuDNN offers only where a device is present: it drops them from an answer given without one.

Its log names each with its reasons (`cudnn_query.Refusal`). Some would be dropped on the card too; those that would
not, and what they take, are told apart here. The rules are exact on the plans that an H200 listed with cuDNN 9.19
(tests/card/libraries/plans_h200.csv).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from vramcast.card.libraries.cudnn_fit import (
    EIGHT_WEIGHTS_PER_IMAGE,
    WEIGHT_PER_IMAGE,
    copies_bytes,
    fitted_workspace,
)
from vramcast.card.libraries.cudnn_query import Refusal
from vramcast.card.libraries.problem import Card, ConvolutionProblem

_NEEDS_CUBLAS = "engine_iface->getStatus()"
_NEEDS_DRIVER = "libcuda == nullptr"
_NEEDS_LEGACY = ("ConvolutionEngine::getStatus()", "core_engine.getStatus()")
_DEPTHWISE_WEIGHT_PARTS_ENGINE = 16
_COPY_ALIGNMENT, _RUNTIME_COPY_ALIGNMENT = 16, 128
_SPATIAL = slice(2, None)

# Winograd: the square of results that a tile yields and the points of its transform, by the size of the filter.
_WINOGRAD_TILES = {3: (4, 36), 5: (9, 169)}
_WINOGRAD_IMAGES = 16  # that many are transformed at a time
_FOURIER_SMALLEST, _FOURIER_TILE, _FOURIER_LARGEST = 16, 32, 256
_FOURIER_CHANNELS = 8
_GROUPS_AT_A_TIME = 8


def device_only_workspace(problem: ConvolutionProblem, refusal: Refusal, card: Card) -> int | None:
    """The workspace of a refused plan that the card would run; None: the card would refuse it too."""
    tensor_cores = problem.dtype != "float32" or problem.tf32
    if _NEEDS_DRIVER in refusal.reasons:
        if not tensor_cores:
            return None
        compiled = _COMPILED.get((problem.operation, refusal.engine))
        return _depthwise(problem, refusal.engine) if compiled is None else compiled(problem)
    is_legacy = any(reason in refusal.reasons for reason in _NEEDS_LEGACY)
    if _NEEDS_CUBLAS in refusal.reasons and not is_legacy and problem.is_pointwise and problem.groups == 1:
        return _matrix_product(problem, card) if tensor_cores else None
    transform = _TRANSFORMS.get((problem.operation, refusal.engine))
    if transform is None or not is_legacy or len(problem.x) != 4 or max(problem.dilation) > 1:
        return None
    if problem.channels_last and not transform.any_layout:
        return None
    return transform.rule(problem) if problem.groups == 1 else _in_groups(problem, transform)


@dataclass(frozen=True, slots=True)
class _Transform:
    """A plan that works on Fourier or Winograd transforms."""

    rule: Callable[[ConvolutionProblem], int | None]
    any_layout: bool = True
    gathers_groups: bool = True
    """Whether it wants the channels of a group in one piece."""


def _in_groups(problem: ConvolutionProblem, transform: _Transform) -> int | None:
    """Some groups at a time, with copies of what lies apart."""
    groups, item = problem.groups, problem.item_bytes
    (batch, channels, *extents), (_, filters, *results) = problem.x, problem.y
    group = replace(
        problem, x=(batch, channels // groups, *extents), w=(filters // groups, *problem.w[1:]),
        y=(batch, filters // groups, *results), channels_last=False,
    )  # fmt: skip
    size = transform.rule(group)
    if size is None:
        return None
    if max(problem.stride) == 1 and (problem.channels_last or (transform.gathers_groups and batch > 1)):
        size += item * (math.prod(group.x) + math.prod(group.y)) + _COPY_ALIGNMENT
        if problem.channels_last and math.prod(group.w[_SPATIAL]) > 1:
            size += item * math.prod(group.w)
    return min(groups, _GROUPS_AT_A_TIME) * size


def is_transform(problem: ConvolutionProblem, engine: int) -> bool:
    """Whether a plan that only the card has works on Fourier or Winograd transforms."""
    return (problem.operation, engine) in _TRANSFORMS


def _depthwise(problem: ConvolutionProblem, engine: int) -> int:
    """Direct kernels; one of those for the weight keeps eight fp32 gradients an image."""
    if not problem.channels_last or problem.operation != "backward_weight" or engine != _DEPTHWISE_WEIGHT_PARTS_ENGINE:
        return 0
    return copies_bytes(problem, EIGHT_WEIGHTS_PER_IMAGE)


def _matrix_product(problem: ConvolutionProblem, card: Card) -> int:
    """cuBLAS: of contiguous tensors one product an image; of channels-last ones, or one image, a single product.

    A batch takes nothing, but its weight gradient keeps one for each image, also of images of one pixel. A single
    product may split its reduction: fitted.
    """
    if not problem.channels_last and problem.x[0] > 1:
        if problem.operation == "backward_weight":
            return copies_bytes(problem, WEIGHT_PER_IMAGE)
        if math.prod(problem.x[2:]) > 1:
            return 0
    return fitted_workspace(problem, card.compute_capability, card.sm_count).partials_bytes


def _in_another_layout(problem: ConvolutionProblem, alignment: int) -> int:
    """Copies of the tensors that are not the same in both layouts."""
    tensors = [shape for shape in (problem.x, problem.w, problem.y) if math.prod(shape[_SPATIAL]) > 1 < shape[1]]
    return sum(problem.item_bytes * math.prod(shape) + alignment for shape in tensors)


def _compiled_forward(problem: ConvolutionProblem) -> int | None:
    return _compiled(problem) if problem.w[1] * problem.item_bytes % 4 == 0 else None


def _compiled_weight(problem: ConvolutionProblem) -> int | None:
    is_aligned = all(channels * problem.item_bytes % 16 == 0 for channels in problem.w[:2])
    return _compiled(problem) if is_aligned else None


def _compiled_data(problem: ConvolutionProblem) -> int | None:
    return _compiled_weight(problem) if max(problem.stride) == 1 else None


def _compiled(problem: ConvolutionProblem) -> int:
    """Kernels compiled at run time, for channels-last tensors."""
    return 0 if problem.channels_last else _in_another_layout(problem, _RUNTIME_COPY_ALIGNMENT)


_COMPILED: dict[tuple[str, int], Callable[[ConvolutionProblem], int | None]] = {
    ("forward", 71): _compiled_forward,
    ("backward_data", 78): _compiled_data,
    ("backward_weight", 70): _compiled_weight,
}


def _contiguous_copies(problem: ConvolutionProblem) -> int:
    """For kernels that know no other layout."""
    return _in_another_layout(problem, 0) + _COPY_ALIGNMENT if problem.channels_last else 0


def _winograd(problem: ConvolutionProblem, results: tuple[int, ...], images: int) -> int | None:
    """Both operands and the result transformed, in fp32."""
    kernel = problem.w[2]
    if max(problem.stride) > 1 or kernel not in _WINOGRAD_TILES or set(problem.w[_SPATIAL]) != {kernel}:
        return None
    side, points = _WINOGRAD_TILES[kernel]
    tiles = images * math.prod(-(-extent // side) for extent in results[_SPATIAL])
    channels, filters = problem.x[1], problem.w[0]
    return points * 4 * ((channels + filters) * tiles + filters * channels) + _contiguous_copies(problem)


def _rounded_images(problem: ConvolutionProblem) -> int:
    return -(-problem.x[0] // _WINOGRAD_IMAGES) * _WINOGRAD_IMAGES


def _winograd_weight(problem: ConvolutionProblem) -> int | None:
    return _winograd(problem, problem.y, problem.x[0] if problem.w[2] == 3 else _rounded_images(problem))


def _winograd_forward(problem: ConvolutionProblem) -> int | None:
    return _winograd(problem, problem.y, _rounded_images(problem))


def _winograd_data(problem: ConvolutionProblem) -> int | None:
    return _winograd(problem, problem.x, _rounded_images(problem))


def _spectrum_bytes(size: int) -> int:
    """A square of real numbers transformed: half of the complex spectrum."""
    return size * (size // 2 + 1) * 8


def _fourier(problem: ConvolutionProblem, planes: int, turned: tuple[int, ...]) -> int | None:
    """Transforms of a power of two that holds an image with its padding, each twice; and a tensor turned over."""
    reach = max(extent + 2 * pad for extent, pad in zip(problem.x[2:], problem.padding, strict=True))
    size = max(_FOURIER_SMALLEST, 1 << (reach - 1).bit_length())
    if size > _FOURIER_LARGEST or max(problem.stride) > 1 or problem.dtype == "bfloat16":
        return None
    return 2 * _spectrum_bytes(size) * planes + 4 * math.prod(turned) + _contiguous_copies(problem)


def _fourier_forward(problem: ConvolutionProblem) -> int | None:
    """Operands or results, whichever are more."""
    batch, channels, filters = problem.x[0], problem.x[1], problem.w[0]
    return _fourier(problem, max(channels * (batch + filters), batch * filters), problem.w)


def _fourier_weight(problem: ConvolutionProblem) -> int | None:
    if any(pad >= extent for pad, extent in zip(problem.padding, problem.x[2:], strict=True)):
        return None
    batch, channels, filters = problem.x[0], problem.x[1], problem.w[0]
    return _fourier(problem, max(batch * (channels + filters), channels * filters), problem.y)


def _tiled_fourier_data(problem: ConvolutionProblem) -> int | None:
    """Tiles of 32x32, two at a time, and the weight. A strided one is made into one of stride one first."""
    if problem.dtype == "bfloat16" or any(
        size <= step for size, step in zip(problem.w[2:], problem.stride, strict=True)
    ):
        return None
    if max(problem.stride) == 1:
        return _tiled_fourier(problem) + _contiguous_copies(problem)
    dense = _without_stride(problem)
    tensors = sum(math.prod(shape) for shape in (dense.x, dense.w, dense.y))
    return _tiled_fourier(dense) + problem.item_bytes * tensors + _COPY_ALIGNMENT


def _tiled_fourier(problem: ConvolutionProblem) -> int:
    outputs = _FOURIER_TILE - max(problem.w[2:]) + 1
    tiles = 1 if max(problem.x[2:]) <= outputs else 2
    batch, channels, filters = problem.x[0], problem.x[1], problem.w[0]
    planes = channels * filters + tiles * batch * (channels + filters)
    return _spectrum_bytes(_FOURIER_TILE) * planes


def _without_stride(problem: ConvolutionProblem) -> ConvolutionProblem:
    """The same gradient with the places of a stride as channels: smaller images, smaller filters, more of them."""
    batch, channels, filters = problem.x[0], problem.x[1] * math.prod(problem.stride), problem.w[0]
    channels, filters = (-(-count // _FOURIER_CHANNELS) * _FOURIER_CHANNELS for count in (channels, filters))
    extents, taps, results = [], [], []
    sides = zip(problem.x[2:], problem.y[2:], problem.w[2:], problem.padding, problem.stride, strict=True)
    for x, y, size, pad, step in sides:
        first, last = _reach(size, pad, step)
        extents.append(-(-min(x, (y - 1) * step + size - pad) // step))
        taps.append(last - first + 1)
        results.append(extents[-1] + first + last)
    return replace(
        problem, x=(batch, channels, *extents), w=(filters, channels, *taps), y=(batch, filters, *results),
        padding=(0,) * len(taps), stride=(1,) * len(taps),
    )  # fmt: skip


def _reach(size: int, pad: int, step: int) -> tuple[int, int]:
    """Which results the inputs of one step get their gradients from, counted from the step's own."""
    ends = [divmod(place + pad, step) for place in range(step)]
    return min(last - -(-(size - rest) // step) + 1 for last, rest in ends), max(last for last, _ in ends)


_TRANSFORMS = {
    ("forward", 3): _Transform(_fourier_forward),
    ("forward", 6): _Transform(_winograd_forward, any_layout=False, gathers_groups=False),
    ("backward_data", 7): _Transform(_winograd_data, any_layout=False, gathers_groups=False),
    ("backward_data", 50): _Transform(_tiled_fourier_data),
    ("backward_weight", 17): _Transform(_winograd_weight, gathers_groups=False),
    ("backward_weight", 18): _Transform(_fourier_weight),
}
