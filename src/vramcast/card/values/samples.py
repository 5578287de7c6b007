"""Ops on a few of a tensor's elements, for tensors that are too large to be worked out.

A sample is a vector of SIZE elements that stands for all of a tensor: the tensor holds it again and again. Elementwise
ops run on samples as they are; what sums, compares or normalises the elements has a rule here. So a softmax over
50,000 classes still sums to one, an exponential is positive, and a cross entropy is near the logarithm of the classes.

What is joined column by column, as boxes, scores and classes, has SIZE rows instead: a column that is read, or computed
with, holds what went into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vramcast.card.values import sample_rows
from vramcast.card.values.sample_rows import MOST_COLUMNS, SIZE, tiled
from vramcast.card.values.working_out import call


@dataclass(frozen=True, slots=True)
class Sampled:
    """A tensor among an op's arguments."""

    elements: torch.Tensor
    """SIZE of them, or one."""
    size: torch.Size
    rows: torch.Tensor | None = None
    """SIZE rows, one after the other, where the columns differ and the tensor is made of whole rows."""

    @property
    def count(self) -> int:
        return self.size.numel()


Arguments = tuple[list[Any], dict[str, Any]]
Rule = Callable[[Any, list[Any], dict[str, Any], torch.Size], Any]
"""From the op, its arguments with each tensor as a Sampled, and the size of the first output: its outputs' elements."""

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def has_rule(func: Any, name: str) -> bool:
    """`name`: of the op, without namespace."""
    aliases = any(returned.alias_info is not None for returned in func._schema.returns)
    return not aliases and (name in RULES or torch.Tag.pointwise in func.tags)


def run(func: Any, name: str, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    """The elements of each output; a single tensor for a single output."""
    chosen = RULES.get(name)
    if chosen is None:
        made = sample_rows.elementwise(func, args, kwargs, size)
        return call(func, elements_of(args), elements_of(kwargs)) if made is None else made
    made = sample_rows.reduced(func, name, args, kwargs, size)
    return chosen(func, args, kwargs, size) if made is None else made


def take(content: torch.Tensor) -> torch.Tensor:
    """A sample of a tensor whose elements are all there."""
    flat = content.reshape(-1)
    if flat.numel() <= 1:
        return flat.clone()
    return flat[torch.arange(SIZE, device="cpu") * max(1, flat.numel() // SIZE) % flat.numel()]


def of_content(content: torch.Tensor) -> Sampled:
    """A tensor whose elements are all there."""
    size, rows = content.size(), None
    if len(size) > 1 and 1 < size[-1] <= MOST_COLUMNS and content.numel():
        lines = content.reshape(-1, size[-1])
        rows = lines[torch.arange(SIZE, device="cpu") * max(1, len(lines) // SIZE) % len(lines)].reshape(-1)
    return Sampled(take(content), size, rows)


def laid_out(elements: torch.Tensor, offset: int, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The elements where a view finds them, in a storage that holds the sample again and again."""
    where = torch.full((), offset, dtype=torch.int64, device="cpu")
    for dim, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [1] * len(size)
        shape[dim] = length
        where = where + (torch.arange(length, device="cpu") * step).reshape(shape)
    return elements[where.expand(tuple(size)) % elements.numel()]


def of_view(elements: torch.Tensor, offset: int, size: torch.Size, stride: Sequence[int]) -> Sampled:
    """A view of a storage that holds the elements, one or SIZE of them or SIZE rows, again and again."""
    if elements.numel() <= SIZE:
        return Sampled(elements, size)
    if not size.numel():
        return Sampled(take(elements), size)
    length = elements.numel() // SIZE
    is_whole = offset % length == 0 and size[-1:] == (length,) and stride[-1] == 1
    first = torch.Size(min(one, SIZE) if dim == 0 else min(one, length) for dim, one in enumerate(size))
    part = take(laid_out(elements, offset, first, stride)) if first.numel() <= SIZE * length else take(elements)
    return Sampled(part, size, elements if is_whole and all(one % length == 0 for one in stride[:-1]) else None)


def elements_of(value: Any) -> Any:
    if isinstance(value, Sampled):
        return value.elements
    if isinstance(value, list):
        return [elements_of(item) for item in value]
    if isinstance(value, dict):
        return {name: elements_of(item) for name, item in value.items()}
    return value


def _argument(func: Any, args: list[Any], kwargs: dict[str, Any], name: str) -> Any:
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            if position < len(args):
                return args[position]
            return kwargs.get(name, argument.default_value if argument.has_default_value() else None)
    return None


def _as_float(elements: torch.Tensor) -> torch.Tensor:
    return elements if elements.dtype == torch.float64 else elements.float()


# -- all of a tensor, or along dimensions -------------------------------------------------------------------------


@rule("sum", "nansum")
def _sum(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x = args[0]
    return _as_float(x.elements).mean() * (x.count / max(size.numel(), 1))


@rule("mean", "nanmean", "median", "nanmedian")
def _mean(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return _as_float(args[0].elements).mean()


@rule("amax", "max", "cummax")
def _highest(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    if len(args) > 1 and isinstance(args[1], Sampled):
        return torch.maximum(args[0].elements, args[1].elements)
    return args[0].elements.max()


@rule("amin", "min", "cummin")
def _lowest(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    if len(args) > 1 and isinstance(args[1], Sampled):
        return torch.minimum(args[0].elements, args[1].elements)
    return args[0].elements.min()


@rule("any", "_is_any_true")
def _any(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return args[0].elements.any()


@rule("all", "_is_all_true")
def _all(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return args[0].elements.all()


@rule("count_nonzero")
def _count_nonzero(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x = args[0]
    return (x.elements != 0).float().mean() * (x.count / max(size.numel(), 1))


@rule("linalg_vector_norm", "norm")
def _norm(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x = args[0]
    order = _argument(func, args, kwargs, "ord" if "ord" in str(func._schema) else "p")
    order = 2.0 if order is None else float(order)
    elements, count = _as_float(x.elements).abs(), x.count / max(size.numel(), 1)
    if order == math.inf:
        return elements.max()
    if order == -math.inf:
        return elements.min()
    if order == 0:
        return (elements != 0).float().mean() * count
    return (elements.pow(order).mean() * count).pow(1 / order)


@rule("var")
def _variance(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return _as_float(args[0].elements).var(unbiased=False)


@rule("std")
def _deviation(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return _as_float(args[0].elements).std(unbiased=False)


@rule("var_mean")
def _variance_and_mean(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    elements = _as_float(args[0].elements)
    return elements.var(unbiased=False), elements.mean()


@rule("std_mean")
def _deviation_and_mean(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    elements = _as_float(args[0].elements)
    return elements.std(unbiased=False), elements.mean()


@rule("logsumexp")
def _log_of_sum(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x = args[0]
    return _as_float(x.elements).logsumexp(0) + math.log(x.count / max(size.numel(), 1) / x.elements.numel())


@rule("_softmax")
def _softmax(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return _log_softmax(func, args, kwargs, size).exp()


@rule("_log_softmax")
def _log_softmax(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x, dim = args[0], args[1]
    elements = _as_float(x.elements)
    classes = x.size[dim] if x.size else 1
    return elements - (elements.logsumexp(0) + math.log(classes / elements.numel()))


@rule("dot", "vdot")
def _dot(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    a, b = args[0], args[1]
    return (a.elements * b.elements).mean() * a.count


# -- losses -------------------------------------------------------------------------------------------------------

_MEAN, _SUM = 1, 2


@rule("nll_loss_forward", "nll_loss2d_forward")
def _negative_log_likelihood(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x, target = args[0], args[1]
    loss, reduction = -_as_float(x.elements), _argument(func, args, kwargs, "reduction")
    weight = torch.tensor(float(target.count), device="cpu")
    if reduction == _MEAN:
        return loss.mean(), weight
    return (loss.mean() * target.count if reduction == _SUM else loss), weight


@rule(
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "mse_loss", "smooth_l1_loss",
    "soft_margin_loss",
)  # fmt: skip
def _loss(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x = args[0]
    loss = call(func, elements_of(args), elements_of(kwargs))
    if _argument(func, args, kwargs, "reduction") == _SUM:
        return loss * (x.count / max(a.elements.numel() for a in args if isinstance(a, Sampled)))
    return loss


@rule("_ctc_loss")
def _connectionist_loss(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    log_probabilities = args[0]
    return -_as_float(log_probabilities.elements).mean() * log_probabilities.size[0], None


@rule("_cdist_forward", "_euclidean_dist")
def _distance(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    a, b = args[0], args[1]
    return (_as_float(a.elements) - _as_float(b.elements)).abs() * math.sqrt(a.size[-1])


# -- elements in another order, or some of them -------------------------------------------------------------------


@rule("index", "index_select", "_unsafe_index")
def _chosen(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x, where = args[0], args[1]
    if x.rows is None:
        return x.elements
    last = len(x.size) - 1
    by = (args[2] if where % len(x.size) == last else None) if isinstance(where, int) else (where[last:] or [None])[0]
    if by is None:
        return x.rows
    if by.count != size[-1] or by.count > SIZE or by.elements.dtype == torch.bool:
        return x.elements
    return sample_rows.picked(x, by.elements[: by.count])


@rule("gather", "take_along_dim")
def _gathered(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x, dim = args[0], _argument(func, args, kwargs, "dim")
    return x.elements if x.rows is None or dim is None or dim % len(x.size) == len(x.size) - 1 else x.rows


@rule("flip")
def _flipped(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return args[0].elements if args[0].rows is None else sample_rows.flipped(args[0], args[1])


@rule(
    "diagonal_copy", "masked_select", "repeat", "roll", "scatter", "scatter_add", "select_scatter", "slice_scatter",
    "tril", "triu",
)  # fmt: skip
def _some(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return args[0].elements


@rule("sort", "topk")
def _sorted(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return args[0].elements, None


@rule("clone", "_to_copy")
def _converted(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    x, dtype = args[0], kwargs.get("dtype")
    elements = x.elements if x.rows is None else x.rows
    return elements if dtype is None else elements.to(dtype)


@rule("cat", "stack")
def _joined(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    parts = [part for part in args[0] if part.count]
    dim = _argument(func, args, kwargs, "dim")
    if len(size) > 1 and dim % len(size) == len(size) - 1 and size[-1] <= MOST_COLUMNS:
        return torch.cat([columns(part, len(size)) for part in parts], dim=1).reshape(-1)
    shares = [max(1, SIZE * part.count // size.numel()) for part in parts]
    if all(part.rows is not None and part.size[-1] == size[-1] for part in parts):
        return tiled(
            torch.cat([columns(p, len(size))[:n] for p, n in zip(parts, shares, strict=True)]).reshape(-1),
            SIZE,
            size[-1],
        ).reshape(-1)
    return take(torch.cat([part.elements[:share] for part, share in zip(parts, shares, strict=True)]))


def columns(part: Sampled, dimensions: int) -> torch.Tensor:
    """SIZE rows of a part that is joined to others, as a tensor of so many dimensions."""
    count = part.size[-1] if len(part.size) == dimensions else 1
    return tiled(part.elements if part.rows is None else part.rows, SIZE, count)


# -- made from nothing --------------------------------------------------------------------------------------------


@rule("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "bernoulli", "fill", "log_sigmoid_forward")
def _alike(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return call(func, elements_of(args), elements_of(kwargs))


@rule("binomial", "native_dropout", "poisson", "_standard_gamma")
def _drawn(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return call(func, elements_of(args), elements_of(kwargs))


@rule("_sample_dirichlet")
def _shares(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    return call(func, elements_of(args), elements_of(kwargs)) * (SIZE / size[-1])


@rule("zeros", "ones", "full", "rand", "randn", "randint", "new_zeros", "new_ones", "new_full")
def _made(func: Any, args: list[Any], kwargs: dict[str, Any], size: torch.Size) -> Any:
    name = func._schema.name.rpartition("::")[2].removeprefix("new_")
    dtype = _argument(func, args, kwargs, "dtype")
    if dtype is None and args and isinstance(args[0], Sampled):
        dtype = args[0].elements.dtype
    if name == "randint":
        low, high = (_argument(func, args, kwargs, end) for end in ("low", "high"))
        return torch.randint(int(low or 0), int(high), (SIZE,), dtype=dtype, device="cpu")
    if name == "full":
        return torch.full((SIZE,), _argument(func, args, kwargs, "fill_value"), dtype=dtype, device="cpu")
    return getattr(torch, name)((SIZE,), dtype=dtype, device="cpu")
