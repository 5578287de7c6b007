"""What a convolution takes besides its operands and results.

PyTorch chooses who runs it (`convolution_backend`), brings the operands into that backend's memory format (copies are
booked by the kernel rule, which knows the strides), and cuDNN takes a workspace for the length of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from vramcast.virtual_gpu.workspaces.cudnn_device_only import device_only_workspace
from vramcast.virtual_gpu.workspaces.cudnn_fit import fitted_workspace
from vramcast.virtual_gpu.workspaces.cudnn_query import CudnnDevice, CudnnError, CudnnLibrary, open_cudnn
from vramcast.virtual_gpu.workspaces.problem import Card, ConvolutionProblem, as_cudnn
from vramcast.virtual_gpu.workspaces.stream_k import ASKED_MULTIPROCESSORS, CLUSTER_M, CLUSTER_N, partial_sums

DIRECTIONS = ("forward", "backward_data", "backward_weight")
STREAM_K_ARCHITECTURE = 9


def convolution_workspace_bytes(
    direction: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    y_shape: Sequence[int],
    *,
    dtype: str,
    channels_last: bool,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    card: Card,
    tf32: bool = True,
    benchmark: bool = False,
) -> list[int]:
    """The transient allocations inside one direction of a convolution, each freed before the next is made.

    Shapes are the module's: x its input, y its output. `dtype` is PyTorch's name for it ("bfloat16"). With
    `benchmark`, cuDNN would try several plans on first sight of a shape; what the fastest takes is not known, the
    first one's workspace is returned.
    """
    if convolution_backend(x_shape, w_shape, stride, dilation, groups, transposed, dtype, channels_last) != "cudnn":
        return []
    problem = as_cudnn(
        direction, x_shape, w_shape, y_shape, stride=stride, padding=padding, dilation=dilation,
        transposed=transposed, dtype=dtype, channels_last=channels_last, tf32=tf32,
    )  # fmt: skip
    if min((*problem.x, *problem.w, *problem.y)) == 0:
        return []
    workspace = cudnn_workspace_bytes(problem, card)
    return [workspace] if workspace else []


@lru_cache(maxsize=50_000)
def cudnn_workspace_bytes(problem: ConvolutionProblem, card: Card) -> int:
    """The workspace of the plan that PyTorch takes: cuDNN's own answer where there is one, else the fitted one."""
    library = open_cudnn()
    answer = None if library is None else _asked_workspace(library, problem, card)
    if answer is not None:
        return answer
    fitted = fitted_workspace(problem, card.compute_capability, card.sm_count)
    return fitted.copies_bytes + fitted.partials_bytes


def _asked_workspace(library: CudnnLibrary, problem: ConvolutionProblem, card: Card) -> int | None:
    device = CudnnDevice(card.compute_capability, card.sm_count, card.l2_bytes, card.memory_bytes)
    try:
        choice = library.choice(problem, device)
    except CudnnError:
        return None
    if choice is None:
        return None
    if problem.dtype != "float32" or problem.tf32:
        for refusal in choice.refused:
            workspace = device_only_workspace(problem, refusal, card)
            if workspace is not None:
                return workspace
    if card.compute_capability[0] != STREAM_K_ARCHITECTURE:
        return choice.workspace_bytes
    knobs = dict(choice.knobs)
    alone = {**knobs, CLUSTER_M: 1, CLUSTER_N: 1}

    def ask(like: ConvolutionProblem, sm_count: int) -> int | None:
        limit = sm_count if sm_count < ASKED_MULTIPROCESSORS else 0
        return library.forced_workspace(like, device, choice.engine, alone, limit)

    more = partial_sums(problem, knobs, card.sm_count, ask)
    return max(0, choice.workspace_bytes + (more or 0))


def convolution_backend(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    dtype: str,
    channels_last: bool,
) -> str:
    """cudnn, or depthwise2d / depthwise3d: PyTorch's own kernels, which take nothing.

    The conditions of _select_conv_backend and use_cudnn_depthwise (aten/src/ATen/native/Convolution.cpp).
    """
    if transposed or groups == 1 or x_shape[1] != groups or w_shape[0] % x_shape[1]:
        return "cudnn"
    if channels_last:
        return "cudnn"
    if len(x_shape) == 5:
        return "depthwise3d"
    if _cudnn_depthwise(x_shape, w_shape, stride, dilation, dtype):
        return "cudnn"
    return "depthwise2d"


def _cudnn_depthwise(
    x_shape: Sequence[int], w_shape: Sequence[int], stride: Sequence[int], dilation: Sequence[int], dtype: str
) -> bool:
    """fp16 depthwise convolutions that cuDNN runs faster (check_cudnn_depthwise_workload_with_filter)."""
    if dtype != "float16" or max(dilation) > 1 or x_shape[1] < 32:
        return False
    if len(x_shape) == 3:
        return stride[0] == 1
    if x_shape[2] == 1 and stride[-1] == 1:
        return True
    step, width, channels, batch, kernel = stride[-1], x_shape[3], x_shape[1], x_shape[0], w_shape[3]
    if len(set(stride)) > 1 or w_shape[2] != w_shape[3] or kernel not in (1, 3, 5) or width < 7 or step > 2:
        return False
    if step == 1:
        return True
    if kernel == 1:
        return width <= 28 if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
    return batch == 1 or channels >= 512 or (channels >= 256 and width >= 28)
