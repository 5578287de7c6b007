"""Plans that cuDNN offers only where a device is present: it drops them from an answer given without one.

Its log names each with its reasons (`cudnn_query.Refusal`). Some would be dropped on the card too; those that would
not, and what they take, are told apart here.
"""

from __future__ import annotations

import math

from vramcast.virtual_gpu.workspaces.cudnn_fit import (
    EIGHT_WEIGHTS_PER_IMAGE,
    WEIGHT_PER_IMAGE,
    copies_bytes,
    fitted_workspace,
)
from vramcast.virtual_gpu.workspaces.cudnn_query import Refusal
from vramcast.virtual_gpu.workspaces.problem import Card, ConvolutionProblem

_NEEDS_CUBLAS = "engine_iface->getStatus()"
_NEEDS_DRIVER = "libcuda == nullptr"
_NEEDS_LEGACY = ("ConvolutionEngine::getStatus()", "core_engine.getStatus()")
_DEPTHWISE_WEIGHT_PARTS_ENGINE = 16
_FOURIER_ENGINE, _WINOGRAD_WEIGHT_ENGINE, _FOURIER_WEIGHT_ENGINE, _TILED_FOURIER_DATA_ENGINE = 3, 17, 18, 50
_WINOGRAD_TILE, _WINOGRAD_POINTS = 4, 36
_FOURIER_SMALLEST, _FOURIER_TILE, _FOURIER_LARGEST = 16, 32, 256


def device_only_workspace(problem: ConvolutionProblem, refusal: Refusal, card: Card) -> int | None:
    """The workspace of a refused plan that the card would run; None: the card would refuse it too."""
    if _NEEDS_DRIVER in refusal.reasons:
        return _depthwise(problem, refusal.engine)
    is_legacy = any(reason in refusal.reasons for reason in _NEEDS_LEGACY)
    if _NEEDS_CUBLAS in refusal.reasons and not is_legacy and problem.is_pointwise and problem.groups == 1:
        return _matrix_product(problem, card)
    rule = _LEGACY.get((problem.operation, refusal.engine))
    if rule is None or not _is_plain(problem) or not is_legacy:
        return None
    workspace = rule(problem)
    if workspace is not None and problem.channels_last:
        workspace += problem.tensor_bytes  # contiguous copies
    return workspace


def _depthwise(problem: ConvolutionProblem, engine: int) -> int:
    """Direct kernels; one of those for the weight keeps eight fp32 gradients an image."""
    if not problem.channels_last or problem.operation != "backward_weight" or engine != _DEPTHWISE_WEIGHT_PARTS_ENGINE:
        return 0
    return copies_bytes(problem, EIGHT_WEIGHTS_PER_IMAGE)


def _matrix_product(problem: ConvolutionProblem, card: Card) -> int:
    """cuBLAS: of contiguous tensors one product an image; of channels-last ones, or one image, a single product.

    A batch takes nothing, but its weight gradient keeps one for each image. A single product may split its reduction:
    fitted.
    """
    if not problem.channels_last and problem.x[0] > 1 and math.prod(problem.x[2:]) > 1:
        return copies_bytes(problem, WEIGHT_PER_IMAGE) if problem.operation == "backward_weight" else 0
    return fitted_workspace(problem, card.compute_capability, card.sm_count).partials_bytes


def _is_plain(problem: ConvolutionProblem) -> bool:
    return (
        len(problem.x) == 4 and problem.x[2] > 1 and problem.groups == 1 and problem.dtype != "bfloat16"
        and {*problem.stride, *problem.dilation} == {1}
    )  # fmt: skip


def _winograd_weight(problem: ConvolutionProblem) -> int | None:
    """3x3 with tiles of 4x4: both operands and the result transformed, in fp32."""
    if problem.w[2:] != (3, 3) or problem.padding != (1, 1):
        return None
    tiles = problem.x[0] * math.prod(-(-extent // _WINOGRAD_TILE) for extent in problem.y[2:])
    channels, filters = problem.x[1], problem.w[0]
    return _WINOGRAD_POINTS * 4 * ((channels + filters) * tiles + filters * channels)


def _spectrum_bytes(size: int) -> int:
    """A square of real numbers transformed: half of the complex spectrum."""
    return size * (size // 2 + 1) * 8


def _fourier_planes_bytes(problem: ConvolutionProblem, planes: int) -> int | None:
    """Transforms of a power of two that holds an image with its padding, each twice."""
    reach = max(extent + 2 * pad for extent, pad in zip(problem.x[2:], problem.padding, strict=True))
    size = max(_FOURIER_SMALLEST, 1 << (reach - 1).bit_length())
    return None if size > _FOURIER_LARGEST else 2 * _spectrum_bytes(size) * planes


def _fourier(problem: ConvolutionProblem) -> int | None:
    """Operands or results, whichever are more, and the weight turned over."""
    batch, channels, filters = problem.x[0], problem.x[1], problem.w[0]
    planes = _fourier_planes_bytes(problem, max(channels * (batch + filters), batch * filters))
    return None if planes is None else planes + 4 * math.prod(problem.w)


def _fourier_weight(problem: ConvolutionProblem) -> int | None:
    """Operands or results, whichever are more, and the gradient turned over."""
    batch, channels, filters = problem.x[0], problem.x[1], problem.w[0]
    planes = _fourier_planes_bytes(problem, max(batch * (channels + filters), channels * filters))
    return None if planes is None else planes + 4 * math.prod(problem.y)


def _tiled_fourier_data(problem: ConvolutionProblem) -> int | None:
    """Tiles of 32x32, two at a time, and the weight."""
    outputs = _FOURIER_TILE - max(problem.w[2:]) + 1
    tiles = 1 if max(problem.x[2:]) <= outputs else 2
    batch, channels, filters = problem.x[0], problem.x[1], problem.w[0]
    planes = channels * filters + tiles * batch * (channels + filters)
    return _spectrum_bytes(_FOURIER_TILE) * planes


_LEGACY = {
    ("forward", _FOURIER_ENGINE): _fourier,
    ("backward_weight", _WINOGRAD_WEIGHT_ENGINE): _winograd_weight,
    ("backward_weight", _FOURIER_WEIGHT_ENGINE): _fourier_weight,
    ("backward_data", _TILED_FOURIER_DATA_ENGINE): _tiled_fourier_data,
}
