"""Plans that cuDNN offers only where a device is present: it drops them from an answer given without one.

Its log names each with its reasons (`cudnn_query.Refusal`). Some would be dropped on the card too; those that would
not, and what they take, are told apart here.
"""

from __future__ import annotations

import math

from vramcast.virtual_gpu.workspaces.cudnn_fit import DEPTHWISE_CHANNELS, DEPTHWISE_PARTS, fitted_workspace
from vramcast.virtual_gpu.workspaces.cudnn_query import Refusal
from vramcast.virtual_gpu.workspaces.problem import Card, ConvolutionProblem

_NEEDS_CUBLAS = "engine_iface->getStatus()"
_NEEDS_DRIVER = "libcuda == nullptr"
_NEEDS_LEGACY = "ConvolutionEngine::getStatus()"
_DEPTHWISE_WEIGHT_PARTS_ENGINE = 16
_WINOGRAD_WEIGHT_ENGINE = 17
_WINOGRAD_TILE, _WINOGRAD_POINTS = 4, 36


def device_only_workspace(problem: ConvolutionProblem, refusal: Refusal, card: Card) -> int | None:
    """The workspace of a refused plan that the card would run; None: the card would refuse it too."""
    if _NEEDS_DRIVER in refusal.reasons:
        return _depthwise(problem, refusal.engine)
    if _NEEDS_CUBLAS in refusal.reasons and problem.is_pointwise and problem.groups == 1:
        return _matrix_product(problem, card)
    if _NEEDS_LEGACY in refusal.reasons and refusal.engine == _WINOGRAD_WEIGHT_ENGINE:
        return _winograd_weight(problem)
    return None


def _depthwise(problem: ConvolutionProblem, engine: int) -> int:
    """Direct kernels; one of those for the weight keeps eight fp32 gradients an image."""
    if not problem.channels_last or problem.operation != "backward_weight" or engine != _DEPTHWISE_WEIGHT_PARTS_ENGINE:
        return 0
    channels = -(-problem.w[0] // DEPTHWISE_CHANNELS) * DEPTHWISE_CHANNELS
    return problem.x[0] * channels * math.prod(problem.w[1:]) * 4 * DEPTHWISE_PARTS


def _matrix_product(problem: ConvolutionProblem, card: Card) -> int:
    """cuBLAS: of contiguous tensors one product an image; of channels-last ones, or one image, a single product.

    A batch takes nothing, but its weight gradient keeps one for each image. A single product may split its reduction:
    fitted.
    """
    batch, weights = problem.x[0], problem.w[0] * problem.w[1]
    if not problem.channels_last and batch > 1 and math.prod(problem.x[2:]) > 1:
        return batch * weights * 4 if problem.operation == "backward_weight" else 0
    return fitted_workspace(problem, card.compute_capability, card.sm_count).partials_bytes


def _winograd_weight(problem: ConvolutionProblem) -> int | None:
    """3x3 with tiles of 4x4: both operands and the result transformed, in fp32."""
    if problem.w[2:] != (3, 3) or problem.padding != (1, 1) or {*problem.stride, *problem.dilation} != {1}:
        return None
    tiles = problem.x[0] * math.prod(-(-extent // _WINOGRAD_TILE) for extent in problem.y[2:])
    channels, filters = problem.x[1], problem.w[0]
    return _WINOGRAD_POINTS * 4 * ((channels + filters) * tiles + filters * problem.w[1])
