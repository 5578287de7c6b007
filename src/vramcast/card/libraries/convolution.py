"""What a convolution takes besides its operands and results.

PyTorch chooses who runs it (`convolution_backend`), brings the operands into that backend's memory format (copies are
booked by the kernel rule, which knows the strides), and cuDNN takes a workspace for the length of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from vramcast.card.libraries.cudnn_device_only import device_only_workspace, is_transform
from vramcast.card.libraries.cudnn_fit import fitted_workspace
from vramcast.card.libraries.cudnn_installed import open_cudnn
from vramcast.card.libraries.cudnn_query import Choice, CudnnDevice, CudnnError, CudnnLibrary, Refusal
from vramcast.card.libraries.problem import Card, ConvolutionProblem, as_cudnn
from vramcast.card.libraries.stream_k import ASKED_MULTIPROCESSORS, CLUSTER_M, CLUSTER_N, partial_sums

DIRECTIONS = ("forward", "backward_data", "backward_weight")
STREAM_K_ARCHITECTURE = 9

TIMED_PLANS = 10
"""torch.backends.cudnn.benchmark_limit, which hardly anyone changes."""
TENSOR_CORE_CHANNELS, TENSOR_CORE_DEPTH = 16, 128
TENSOR_CORE_WEIGHT_CHANNELS, TENSOR_CORE_WEIGHT_DEPTH = 32, 2048
"""From this many channels and this many products in a sum, an fp32 plan on tensor cores makes up for the copies of
operands that it takes, and beats those without, which cuDNN ranks first for some problems."""
SLOW_WORKSPACE = 16
"""A plan whose workspace is that many times the operands and the result spends its time on it."""
UNSTRIDED_ENGINE, STRIDED_ENGINES = 58, (65, 76)
"""For the gradient of a strided input: the one multiplies zeros, too."""

_Answer = TypeVar("_Answer")


class _Plan(NamedTuple):
    workspace_bytes: int
    engine: int
    tensor_cores: bool
    is_transform: bool = False


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The workspaces of all plans, the largest first; and of the plans from the one that is taken to be fastest on."""

    tried_bytes: tuple[int, ...]
    by_speed_bytes: tuple[int, ...]

    @property
    def timed_bytes(self) -> tuple[int, ...]:
        """Workspaces of the plans that may turn out the fastest."""
        return self.by_speed_bytes[:TIMED_PLANS]


def cudnn_problem(
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
    tf32: bool = True,
) -> ConvolutionProblem | None:
    """What cuDNN is asked for in one direction of a convolution; None where it is not asked.

    Shapes are the module's: x its input, y its output. `dtype` is PyTorch's name for it ("bfloat16").
    """
    if convolution_backend(x_shape, w_shape, stride, dilation, groups, transposed, dtype, channels_last) != "cudnn":
        return None
    problem = as_cudnn(
        direction, x_shape, w_shape, y_shape, stride=stride, padding=padding, dilation=dilation,
        transposed=transposed, dtype=dtype, channels_last=channels_last, tf32=tf32,
    )  # fmt: skip
    return None if min((*problem.x, *problem.w, *problem.y)) == 0 else problem


@lru_cache(maxsize=50_000)
def cudnn_workspace_bytes(problem: ConvolutionProblem, card: Card) -> int:
    """The workspace of the plan that PyTorch takes: cuDNN's own answer where there is one, else the fitted one."""
    library = open_cudnn()
    choice = None if library is None else _asked(library.choice, problem, card)
    if library is not None and choice is not None:
        device_only = _device_only(problem, choice.refused, card)
        return device_only[0].workspace_bytes if device_only else _own_workspace(library, choice, problem, card)
    fitted = fitted_workspace(problem, card.compute_capability, card.sm_count)
    return fitted.copies_bytes + fitted.partials_bytes


def smaller_workspaces(problem: ConvolutionProblem, card: Card) -> tuple[int, ...]:
    """Workspaces of the plans after the first, in the order in which PyTorch tries them while memory is refused."""
    return tuple(plan.workspace_bytes for plan in _ranked_plans(problem, card)[1:]) or (0,)


@lru_cache(maxsize=5_000)
def benchmark(problem: ConvolutionProblem, card: Card) -> Benchmark:
    """What cudnn.benchmark does on first sight of a shape: it times the first plans that cuDNN ranks.

    Which of them wins is only known on the card: `likely_fastest_first`.
    """
    plans = _ranked_plans(problem, card)
    if not plans:
        only = cudnn_workspace_bytes(problem, card)
        return Benchmark((only,), (only, 0))
    timed, others = plans[:TIMED_PLANS], plans[TIMED_PLANS:]
    by_speed = [plan.workspace_bytes for plan in (*likely_fastest_first(problem, timed), *others)]
    return Benchmark(tuple(sorted(set(by_speed), reverse=True)), tuple(by_speed))


def likely_fastest_first(problem: ConvolutionProblem, plans: Sequence[_Plan]) -> list[_Plan]:
    """cuDNN's ranking, but for what it gets wrong on an H200 (lab/data/records/plan_times).

    The card itself is of two minds: of 1,572 problems the plan that wins once keeps a workspace within 2 MiB of the
    winner's of another time in 95 %.
    """
    has_tensor_cores = problem.dtype != "float32" or problem.tf32
    sums_pay = _sums_pay_for_copies(problem)

    def is_slow(plan: _Plan) -> bool:
        if plan.workspace_bytes > SLOW_WORKSPACE * problem.tensor_bytes:
            return True
        if plan.is_transform:
            return has_tensor_cores
        return sums_pay and not plan.tensor_cores

    ordered = sorted(plans, key=is_slow)
    if problem.operation == "backward_weight":
        return ordered
    if problem.operation == "backward_data" and ordered[0].engine == UNSTRIDED_ENGINE and max(problem.stride) == 2:
        strided = next((plan for plan in ordered if plan.engine in STRIDED_ENGINES), None)
        ordered.sort(key=lambda plan: plan is not strided)
    return _without_partial_sums_first(ordered)


def recorded_plan(problem: ConvolutionProblem, workspace_bytes: int, engine: int, on_tensor_cores: bool) -> _Plan:
    """A plan as a card listed it."""
    return _Plan(workspace_bytes, engine, on_tensor_cores, is_transform(problem, engine))


def _sums_pay_for_copies(problem: ConvolutionProblem) -> bool:
    if problem.dtype != "float32" or not problem.tf32:
        return False
    channels = min(problem.w[:2])
    if problem.operation == "backward_weight":
        depth = problem.y[0] * math.prod(problem.y[2:])
        return channels >= TENSOR_CORE_WEIGHT_CHANNELS and depth >= TENSOR_CORE_WEIGHT_DEPTH
    summed = problem.w[1] if problem.operation == "forward" else problem.w[0] // problem.groups
    return channels >= TENSOR_CORE_CHANNELS and summed * math.prod(problem.w[2:]) >= TENSOR_CORE_DEPTH


def _without_partial_sums_first(plans: list[_Plan]) -> list[_Plan]:
    """Before the first plan, the one of its engine that splits the sum the least and so keeps the least.

    cuDNN ranks split sums first for some results and data gradients; on an H200 they never won against the same engine
    without. A weight's gradient is a long sum, where they do win.
    """
    best = min((plan for plan in plans if plan.engine == plans[0].engine), key=lambda plan: plan.workspace_bytes)
    return [best, *(plan for plan in plans if plan is not best)]


def _asked(
    ask: Callable[[ConvolutionProblem, CudnnDevice], _Answer], problem: ConvolutionProblem, card: Card
) -> _Answer | None:
    try:
        return ask(problem, _device(card))
    except CudnnError:
        return None


def _device(card: Card) -> CudnnDevice:
    return CudnnDevice(card.compute_capability, card.sm_count, card.l2_bytes, card.memory_bytes)


@lru_cache(maxsize=5_000)
def _ranked_plans(problem: ConvolutionProblem, card: Card) -> tuple[_Plan, ...]:
    """The plans as cuDNN ranks them on the card; none where it cannot be asked."""
    library = open_cudnn()
    ranking = None if library is None else _asked(library.ranking, problem, card)
    if library is None or ranking is None:
        return ()
    plans: list[_Plan] = []
    for choice in ranking.plans:
        plans += _device_only(problem, choice.refused, card)
        plans.append(_Plan(_own_workspace(library, choice, problem, card), choice.engine, choice.tensor_cores))
    return (*plans, *_device_only(problem, ranking.refused_last, card))


def _device_only(problem: ConvolutionProblem, refused: Iterable[Refusal], card: Card) -> list[_Plan]:
    """The plans among the refused ones that the card itself has."""
    plans = []
    for refusal in refused:
        size, transform = device_only_workspace(problem, refusal, card), is_transform(problem, refusal.engine)
        if size is not None:
            plans.append(_Plan(size, refusal.engine, not transform, transform))
    return plans


def _own_workspace(library: CudnnLibrary, choice: Choice, problem: ConvolutionProblem, card: Card) -> int:
    if card.compute_capability[0] != STREAM_K_ARCHITECTURE:
        return choice.workspace_bytes
    knobs = dict(choice.knobs)
    alone = {**knobs, CLUSTER_M: 1, CLUSTER_N: 1}

    def ask(like: ConvolutionProblem, sm_count: int) -> int | None:
        limit = sm_count if sm_count < ASKED_MULTIPROCESSORS else 0
        return library.forced_workspace(like, _device(card), choice.engine, alone, limit)

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
