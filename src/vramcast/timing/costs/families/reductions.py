"""Sums, means, norms, extremes; softmax; and what walks along a dimension."""

from __future__ import annotations

from math import prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.elementwise import made_contiguous, pointwise
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor

# Cycles for a target of a loss, and for an element that waits for the one before it, read off the H200's times.
_TARGET_CYCLES = 1.6
_SCAN_CYCLES = 320.0
# exp and log1p are some 35 instructions of CUDA's library, each of which waits four cycles for the one before it.
_EXPONENTIAL_CYCLES = 140.0
# Columns of a weight that a block normalises (ATen/native/cuda/WeightNorm.cu, TILE_W).
_NORM_COLUMNS = 16
# Passes of a loss over its elements, and which of its arguments says what becomes of them. With logits it is composed
# of other operators (ATen/native/Loss.cpp).
_LOSSES = {
    "mse_loss": (1, 2), "smooth_l1_loss": (1, 2), "huber_loss": (1, 2), "binary_cross_entropy": (1, 3),
    "binary_cross_entropy_with_logits": (5, 4),
}  # fmt: skip
LOSSES = tuple(_LOSSES)
LOSSES_BACKWARD = ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")


def reduce(name: str, args: Arguments, card: Card) -> list[Part]:
    """Dimensions are the first list of numbers (or the first number, for `amax.dim` and the like); none means all."""
    x = args.tensor(0)
    if x is None or x.device != "cuda":
        return []
    rank = len(x.shape)
    dims = next((value for value in args.args[1:] if isinstance(value, list)), None)
    if dims is None and name in ("cumsum", "max", "min", "argmax", "argmin", "logsumexp", "any", "all", "var", "std"):
        single = args.args[1] if len(args.args) > 1 else None
        dims = [single] if isinstance(single, int) and not isinstance(single, bool) else None
    reduced = {dim % rank for dim in dims if isinstance(dim, int)} if dims and rank else set(range(rank))
    outputs = prod(size for dim, size in enumerate(x.shape) if dim not in reduced)
    length = x.numel // max(outputs, 1)
    order = x.order
    inner = not order or order[-1] in reduced
    moved = float(x.nbytes + outputs * x.item)
    kind = "reduce-all" if outputs == 1 else f"reduce-{'inner' if inner else 'outer'}"
    features = (feature("outputs", outputs), feature("length", length))
    tags = (name, f"{x.item}-byte", "dense" if x.dense else "gaps")
    return [Part(kind, max(moved / card.bandwidth, 1e-10), float(x.numel), moved, "f32", features, tags)]


def loss(name: str, args: Arguments, card: Card) -> list[Part]:
    """A loss of two tensors: passes over its elements, then their sum or mean unless each is asked for."""
    passes, place = _LOSSES[name]
    parts = pointwise(name, args, card) * passes
    wanted = args.args[place] if len(args.args) > place else 1
    x = args.tensor(0)
    return parts if wanted == 0 or x is None else [*parts, *reduce("mean", Arguments((x,), {}), card)]


def loss_backward(name: str, args: Arguments, card: Card) -> list[Part]:
    """A result of zeros, then the gradient."""
    x = args.tensor(1)
    zeros = float(x.nbytes) if x is not None else 0.0
    return [Part("fill", max(zeros / card.bandwidth, 1e-10), 0.0, zeros), *pointwise(name, args, card)]


def weight_norm(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """A weight over its norms, read twice: a block for each row, or one for a few columns where the last dimension is
    kept, so that few columns leave the card waiting."""
    return _weight_norm("weight-norm", args, card, 0)


def weight_norm_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    return _weight_norm("weight-norm-backward", args, card, 1)


def _weight_norm(kind: str, args: Arguments, card: Card, place: int) -> list[Part]:
    weight = args.tensor(place)
    if weight is None or not weight.shape:
        return []
    kept = args.args[-1]
    last = len(weight.shape) > 1 and isinstance(kept, int) and kept % len(weight.shape) == len(weight.shape) - 1
    blocks = weight.shape[-1] / _NORM_COLUMNS if last else weight.shape[0]
    moved = (3.0 + 2.0 * place) * weight.nbytes
    base = moved / (card.bandwidth * min(1.0, blocks / card.sms))
    return [Part(kind, max(base, 1e-10), 4.0 * weight.numel, moved)]


def _softmax(kind: str, reads: list[Tensor], dim: int, card: Card, extra: float = 0.0) -> list[Part]:
    x = reads[0]
    rank = len(x.shape)
    place = dim % rank if rank else 0
    length = x.shape[place] if rank else 1
    moved = float(sum(tensor.nbytes for tensor in reads) + x.numel * x.item) + extra
    # Rows that do not fit a block's registers are read again from memory or the cache.
    features = (feature("length", length),)
    tags = ("inner" if place == rank - 1 else "outer", f"{x.item}-byte")
    parts = [Part(kind, max(moved / card.bandwidth, 1e-10), 5.0 * x.numel, moved, "f32", features, tags)]
    return parts + made_contiguous(card, reads[:1])


def softmax(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    dim = args.args[1] if len(args.args) > 1 and isinstance(args.args[1], int) else -1
    return [] if x is None else _softmax("softmax", [x], dim, card)


def log_softmax(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x = args.tensor(0)
    dim = args.args[1] if len(args.args) > 1 and isinstance(args.args[1], int) else -1
    return [] if x is None else _softmax("log-softmax", [x], dim, card)


def safe_softmax(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """A softmax, then a look for rows that are masked whole: each element compared, the rows reduced, zeros put in."""
    x = args.tensor(0)
    if x is None:
        return []
    dim = args.args[1] if len(args.args) > 1 and isinstance(args.args[1], int) else -1
    flags = Tensor("b8", x.shape)
    rows = Tensor("b8", (*x.shape[:-1], 1))
    zero = Tensor(x.dtype, ())
    return [
        *_softmax("softmax", [x], dim, card),
        *pointwise("eq", Arguments((x,), {}), card),
        *reduce("all", Arguments((flags, -1), {}), card),
        *pointwise("where", Arguments((rows, zero, x), {}), card),
    ]


def softmax_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """A product of the gradient and the result first, then the rows."""
    dy, y = args.tensor(0), args.tensor(1)
    dim = args.args[2] if len(args.args) > 2 and isinstance(args.args[2], int) else -1
    if dy is None or y is None:
        return []
    return [*_softmax("softmax-backward", [dy, y], dim, card), *pointwise("mul", Arguments((dy, y), {}), card)]


def log_softmax_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    dy, y = args.tensor(0), args.tensor(1)
    dim = args.args[2] if len(args.args) > 2 and isinstance(args.args[2], int) else -1
    return [] if dy is None or y is None else _softmax("log-softmax-backward", [dy, y], dim, card)


def _targets(card: Card, count: int, places: int) -> Part:
    """One log-probability for each target. Rows are gone through by one block, the places of images by many."""
    moved = 16.0 * count
    if places > 1:
        return Part("nll-loss-image", max(moved / card.bandwidth, 1e-10), float(count), moved)
    return Part("nll-loss", max(moved / card.bandwidth, count * _TARGET_CYCLES / card.clock), float(count), moved)


def nll_loss(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    x, target = args.tensor(0), args.tensor(1)
    return [] if target is None or x is None else [_targets(card, target.numel, prod(x.shape[2:]))]


def nll_loss_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """A gradient of zeros, as large as the log-probabilities, and one element for each target."""
    x, target = args.tensor(1), args.tensor(2)
    if x is None or target is None:
        return []
    moved = float(x.nbytes)
    fill = Part("fill", max(moved / card.bandwidth, 1e-10), 0.0, moved)
    return [fill, _targets(card, target.numel, prod(x.shape[2:]))]


def select(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """topk: a pass over the keys for each digit of eight bits, and one that gathers; the few found are then sorted."""
    x = args.tensor(0)
    if x is None:
        return []
    base = (x.item + 1) * x.nbytes / card.bandwidth
    return [Part("select", max(base, 1e-10), 0.0, float(x.nbytes), kernels=x.item + 3)]


def sort(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Radix sort: a pass over keys and indices for each digit of eight bits."""
    x = args.tensor(0)
    if x is None:
        return []
    moved = float(2 * (x.nbytes + 8 * x.numel))
    base = x.item * moved / card.bandwidth
    return [Part("sort", max(base, 1e-10), 0.0, moved, features=(feature("length", x.numel),), kernels=x.item + 3)]


def scan(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Along another dimension than the last a thread goes through its elements one after the other."""
    x = args.tensor(0)
    if x is None:
        return []
    return _scan(args, x, card, 2.0 * x.nbytes)


def scan_of_exponentials(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Each element waits for an exponential and a logarithm, too."""
    x = args.tensor(0)
    return [] if x is None else _scan(args, x, card, 2.0 * x.nbytes, _EXPONENTIAL_CYCLES)


def scan_with_indices(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """Where each value came from is written, too."""
    x = args.tensor(0)
    return [] if x is None else _scan(args, x, card, 2.0 * x.nbytes + 8.0 * x.numel)


def _scan(args: Arguments, x: Tensor, card: Card, moved: float, more_cycles: float = 0.0) -> list[Part]:
    dim = args.args[1] if len(args.args) > 1 and isinstance(args.args[1], int) else -1
    rank = len(x.shape)
    if rank > 1 and dim % rank != rank - 1:
        base = max(moved / card.bandwidth, x.shape[dim] * (_SCAN_CYCLES + more_cycles) / card.clock)
        return [Part("scan-outer", base, float(x.numel), moved)]
    return [Part("scan", max(moved / card.bandwidth, 1e-10), float(x.numel), moved)]


_REDUCTION_NAMES = (
    "sum mean amax amin max min prod any all var std var_mean std_mean argmax argmin logsumexp linalg_vector_norm norm "
    "nansum count_nonzero aminmax"
)
REDUCTIONS = _REDUCTION_NAMES.split()
FAMILY = {
    "_weight_norm_interface": weight_norm, "_weight_norm_interface_backward": weight_norm_backward,
    "_softmax": softmax, "_log_softmax": log_softmax, "_safe_softmax": safe_softmax,
    "_softmax_backward_data": softmax_backward, "_log_softmax_backward_data": log_softmax_backward,
    "nll_loss_forward": nll_loss, "nll_loss2d_forward": nll_loss, "nll_loss_backward": nll_loss_backward,
    "nll_loss2d_backward": nll_loss_backward, "sort": sort, "argsort": sort, "topk": select, "unique": sort,
    "_unique2": sort, "cumsum": scan, "cumprod": scan, "logcumsumexp": scan_of_exponentials,
    "cummax": scan_with_indices, "cummin": scan_with_indices,
}  # fmt: skip
