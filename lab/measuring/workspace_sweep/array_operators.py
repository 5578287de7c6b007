"""Random cases of what works on arrays: sorts, scans, indexing, reductions, FFT, images, optimizers, matrices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.measuring.workspace_sweep.operator_case import DTYPES, Case, Makers, case, float_dtype, numel, randn
from lab.measuring.workspace_sweep.record import record

MAKERS: Makers = {}

# --- sorting, scans, indexing -------------------------------------------------------------------------------


def _vector_or_matrix(rng: random.Random) -> tuple[int, ...]:
    total = numel(rng, 0, 25)
    if rng.random() < 0.5:
        return (total,)
    rows = min(total, numel(rng, 0, 14))
    return (rows, max(1, total // rows))


@case(MAKERS, 14)
def sort_like(rng: random.Random) -> Case:
    kind = rng.choice(
        ("sort", "sort_stable", "argsort", "topk", "kthvalue", "median", "cumsum", "cumprod", "logcumsumexp", "cummax",
         "unique", "unique_inverse", "unique_consecutive", "nonzero", "masked_select", "bincount", "histc",
         "searchsorted", "multinomial", "randperm", "mode", "isin", "bool_index")
    )  # fmt: skip
    dtype = rng.choice(("f32", "f32", "bf16", "f16", "i64"))
    if kind in ("logcumsumexp", "histc", "multinomial", "cumprod") and dtype == "i64":
        dtype = "f32"
    if kind in ("bincount", "randperm"):
        dtype = "i64"
    shape = _vector_or_matrix(rng)
    if kind in ("bincount", "unique", "unique_inverse", "unique_consecutive", "randperm", "isin"):
        shape = (torch.Size(shape).numel(),)
    if kind == "multinomial":
        shape = (min(4096, shape[0]), min(60000, shape[-1])) if len(shape) > 1 else (min(2**20, shape[0]),)
    if kind == "mode":
        shape = tuple(min(4096, extent) for extent in shape)
    if dtype == "i64":
        x = torch.randint(0, 1000, shape, device="cuda")
    else:
        x = torch.rand(shape, device="cuda").to(DTYPES[dtype])
    share = rng.choice((0.0, 0.1, 0.5, 1.0))
    mask = torch.rand(shape, device="cuda") < share
    hits = int(mask.sum())
    dim = rng.choice((0, -1)) if len(shape) > 1 else -1
    k = max(1, min(shape[dim], rng.choice((1, 5, 10, 50, 1000))))
    sorted_keys = torch.linspace(0, 1, 1024, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        "sort": lambda: torch.sort(x, dim),
        "sort_stable": lambda: torch.sort(x, dim=dim, stable=True),
        "argsort": lambda: torch.argsort(x, dim),
        "topk": lambda: torch.topk(x, k, dim),
        "kthvalue": lambda: torch.kthvalue(x, k, dim),
        "median": lambda: torch.median(x, dim),
        "cumsum": lambda: torch.cumsum(x, dim),
        "cumprod": lambda: torch.cumprod(x, dim),
        "logcumsumexp": lambda: torch.logcumsumexp(x, dim),
        "cummax": lambda: torch.cummax(x, dim),
        "unique": lambda: torch.unique(x),
        "unique_inverse": lambda: torch.unique(x, return_inverse=True, return_counts=True),
        "unique_consecutive": lambda: torch.unique_consecutive(x),
        "nonzero": lambda: torch.nonzero(mask),
        "masked_select": lambda: torch.masked_select(x, mask),
        "bincount": lambda: torch.bincount(x),
        "histc": lambda: torch.histc(x, 100),
        "searchsorted": lambda: torch.searchsorted(sorted_keys, x.float()),
        "multinomial": lambda: torch.multinomial(x.float() + 0.01, min(k, x.shape[-1]), replacement=False),
        "randperm": lambda: torch.randperm(x.numel(), device="cuda"),
        "mode": lambda: torch.mode(x, dim),
        "isin": lambda: torch.isin(x, x[:100]),
        "bool_index": lambda: x[mask],
    }
    parameters = {"shape": list(shape), "dt": dtype, "dim": dim, "k": k, "hits": hits}
    return Case(kind, parameters, calls[kind])


@case(MAKERS, 7)
def indexing(rng: random.Random) -> Case:
    kind = rng.choice(("index_backward", "index_put", "index_put_accumulate", "index_add", "scatter", "scatter_add",
                       "gather_backward", "index_select_backward", "take_along", "repeat_interleave", "index_copy"))  # fmt: skip
    dtype = float_dtype(rng)
    rows, width = numel(rng, 1, 17), rng.choice((1, 3, 64, 256, 768))
    count = numel(rng, 0, 17)
    if max(rows, count) * width > 1e8:
        width = 64
    grad = kind.endswith("backward")
    x = randn((rows, width), dtype, grad)
    index = torch.randint(0, rows, (count,), device="cuda")
    wide = index[:, None].expand(count, width)
    values = randn((count, width), dtype, False)
    calls: dict[str, Callable[[], Any]] = {
        "index_backward": lambda: x[index],
        "index_put": lambda: x.index_put_((index,), values),
        "index_put_accumulate": lambda: x.index_put_((index,), values, accumulate=True),
        "index_add": lambda: x.index_add_(0, index, values),
        "index_copy": lambda: x.index_copy_(0, index, values),
        "scatter": lambda: x.scatter_(0, wide, values),
        "scatter_add": lambda: x.scatter_add_(0, wide, values),
        "gather_backward": lambda: torch.gather(x, 0, wide),
        "index_select_backward": lambda: torch.index_select(x, 0, index),
        "take_along": lambda: torch.take_along_dim(x, wide, 0),
        "repeat_interleave": lambda: torch.repeat_interleave(x, torch.full((rows,), 2, device="cuda"), 0),
    }
    parameters = {"rows": rows, "width": width, "n": count, "dt": dtype}
    return Case(kind, parameters, calls[kind], [x] if grad else ())


@case(MAKERS, 6)
def reductions(rng: random.Random) -> Case:
    kind = rng.choice(("sum", "mean", "amax", "max", "argmax", "var", "std", "norm", "logsumexp", "softmax", "log_softmax",
                       "foreach_norm", "clip_grad", "vector_norm", "prod", "any", "count_nonzero", "all_close"))  # fmt: skip
    dtype = float_dtype(rng)
    shape = _vector_or_matrix(rng)
    x = randn(shape, dtype)
    dim = rng.choice((None, 0, -1))
    if kind in ("logsumexp", "softmax", "log_softmax", "max", "prod") and dim is None:
        dim = -1
    count = rng.choice((1, 5, 40, 300))
    pieces = [randn((max(1, x.numel() // count),), dtype, False) for _ in range(count)]
    holders = [nn.Parameter(piece) for piece in pieces]
    for holder in holders:
        holder.grad = torch.zeros_like(holder)
    calls: dict[str, Callable[[], Any]] = {
        "sum": lambda: x.sum(dim) if dim is not None else x.sum(),
        "mean": lambda: x.mean(dim) if dim is not None else x.mean(),
        "amax": lambda: x.amax(dim) if dim is not None else x.amax(),
        "max": lambda: x.max(dim),
        "argmax": lambda: x.argmax(dim),
        "var": lambda: x.var(dim) if dim is not None else x.var(),
        "std": lambda: x.std(dim) if dim is not None else x.std(),
        "norm": lambda: x.norm() if dim is None else x.norm(dim=dim),
        "vector_norm": lambda: torch.linalg.vector_norm(x, dim=dim),
        "logsumexp": lambda: torch.logsumexp(x, dim),
        "softmax": lambda: torch.softmax(x, dim),
        "log_softmax": lambda: torch.log_softmax(x, dim),
        "prod": lambda: x.prod(dim),
        "any": lambda: (x != 0).any(),
        "count_nonzero": lambda: torch.count_nonzero(x),
        "all_close": lambda: torch.isfinite(x).all(),
        "foreach_norm": lambda: torch._foreach_norm(pieces),
        "clip_grad": lambda: nn.utils.clip_grad_norm_(holders, 1.0),
    }
    differentiable = kind not in ("argmax", "any", "count_nonzero", "all_close", "foreach_norm", "clip_grad")
    parameters = {"shape": list(shape), "dt": dtype, "dim": dim, "count": count}
    return Case(kind, parameters, calls[kind], [x] if differentiable else ())


# --- FFT -----------------------------------------------------------------------------------------------------


@case(MAKERS, 9)
def fft(rng: random.Random) -> Case:
    dims = rng.choice((1, 2, 2, 3))
    kind = rng.choice(("rfft", "irfft", "fft", "ifft"))
    sizes = {1: (100, 128, 256, 400, 512, 509, 1000, 1024, 4096, 16000, 16384), 2: (16, 32, 48, 61, 64, 85, 100, 128, 127, 256, 512),
             3: (8, 16, 20, 32, 37, 64, 128)}[dims]  # fmt: skip
    size = (rng.choice(sizes),) * dims if rng.random() < 0.7 else tuple(rng.choice(sizes) for _ in range(dims))
    batch = (rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 3, 20, 32, 64, 256)))
    while batch[1] > 1 and batch[0] * batch[1] * torch.Size(size).numel() > 6e7:
        batch = (batch[0], batch[1] // 2)
    norm = rng.choice((None, "ortho", "forward"))
    axes = tuple(range(-dims, 0))
    last = size[-1] // 2 + 1
    if kind in ("rfft",):
        x = randn((*batch, *size), "f32")
        call = lambda: torch.fft.rfftn(x, dim=axes, norm=norm)
    else:
        shape = (*batch, *size[:-1], last) if kind == "irfft" else (*batch, *size)
        x = torch.zeros(shape, dtype=torch.complex64, device="cuda", requires_grad=True)
        function = {"irfft": torch.fft.irfftn, "fft": torch.fft.fftn, "ifft": torch.fft.ifftn}[kind]
        s = size if kind == "irfft" else None
        call = lambda: function(x, s=s, dim=axes, norm=norm)
    return Case(f"{kind}n", {"batch": list(batch), "size": list(size), "norm": norm}, call, [x])


# --- the rest ------------------------------------------------------------------------------------------------


@case(MAKERS, 7)
def images(rng: random.Random) -> Case:
    kind = rng.choice(("bilinear", "bicubic", "nearest", "trilinear", "grid_sample", "max_pool", "avg_pool", "adaptive",
                       "pixel_shuffle", "reflection_pad", "unfold", "fold", "antialias"))  # fmt: skip
    dtype = float_dtype(rng)
    batch, channels, side = rng.choice((1, 2, 4, 8)), rng.choice((3, 16, 64, 128)), rng.choice((16, 31, 32, 64, 128))
    dims = 3 if kind == "trilinear" else 2
    side = min(side, 32) if dims == 3 else side
    x = randn((batch, channels, *(side,) * dims), dtype, False)
    cl = rng.random() < 0.3 and dims == 2
    x = (x.contiguous(memory_format=torch.channels_last) if cl else x).requires_grad_()
    grid = randn((batch, side, side, 2), dtype)
    columns = randn((batch, 9 * channels, side * side), dtype)
    wrt: list[Tensor] = [x]
    calls: dict[str, Callable[[], Any]] = {
        "bilinear": lambda: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "bicubic": lambda: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "nearest": lambda: F.interpolate(x, scale_factor=2, mode="nearest"),
        "trilinear": lambda: F.interpolate(x, scale_factor=2, mode="trilinear"),
        "antialias": lambda: F.interpolate(x, size=side // 2, mode="bilinear", antialias=True),
        "grid_sample": lambda: F.grid_sample(x, grid, align_corners=False),
        "max_pool": lambda: F.max_pool2d(x, 3, 2, 1),
        "avg_pool": lambda: F.avg_pool2d(x, 2),
        "adaptive": lambda: F.adaptive_avg_pool2d(x, 1),
        "pixel_shuffle": lambda: F.pixel_unshuffle(x, 2) if side % 2 == 0 else x * 1,
        "reflection_pad": lambda: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        "unfold": lambda: F.unfold(x, 3, padding=1),
        "fold": lambda: F.fold(columns, (side, side), 3, padding=1),
    }
    if kind == "grid_sample":
        wrt = [x, grid] if rng.random() < 0.7 else [x]
    if kind == "fold":
        wrt = [columns]
    return Case(kind, {"shape": list(x.shape), "dt": dtype, "cl": int(cl), "wrt": len(wrt)}, calls[kind], wrt)


@case(MAKERS, 5)
def optimizers(rng: random.Random) -> Case:
    name = rng.choice(
        ("AdamW", "AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "NAdam", "Adafactor", "RAdam", "Adadelta")
    )
    mode = (
        rng.choice(("foreach", "fused", "single"))
        if name in ("AdamW", "Adam", "SGD", "Adagrad")
        else rng.choice(("foreach", "single"))
    )
    dtype = float_dtype(rng, "f32", "f32", "bf16")
    count, size = rng.choice((1, 3, 30, 200)), numel(rng, 4, 18)
    parameters = [nn.Parameter(randn((size,), dtype, False)) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    flags: dict[str, Any] = {"foreach": mode == "foreach"} if mode != "fused" else {"fused": True}
    if name == "SGD" and rng.random() < 0.6:
        flags["momentum"] = 0.9
    if name == "Adafactor":
        optimizer: Any = torch.optim.Adafactor(parameters, foreach=mode == "foreach")
    else:
        optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, **flags)
    first = record(optimizer.step)
    made = Case("optimizer", {"name": name, "mode": mode, "dt": dtype, "count": count, "size": size,
                              "momentum": flags.get("momentum", 0)}, optimizer.step)  # fmt: skip
    made.notes["first"] = first.history if count < 30 else f"peak {first.peak_bytes}"
    return made


@case(MAKERS, 6)
def matrices(rng: random.Random) -> Case:
    kind = rng.choice(("mm", "addmm", "linear", "linear", "bmm", "baddbmm", "einsum", "cdist", "matvec", "linear_gelu", "dot",
                       "bilinear_layer", "outer"))  # fmt: skip
    dtype = float_dtype(rng)
    m, n, k = (max(1, numel(rng, 0, 13)) for _ in range(3))
    b = rng.choice((1, 2, 8, 16))
    if kind == "cdist":
        dtype, m, n, k = "f32", min(m, 2000), min(n, 2000), min(k, 64)
    if kind == "bilinear_layer":
        m, n, k = min(m, 256), min(n, 128), min(k, 128)
    a, c = randn((m, k), dtype), randn((k, n), dtype)
    w, bias = randn((n, k), dtype), randn((n,), dtype)
    small = [min(extent, 1024) for extent in (m, n, k)]
    a3, c3 = randn((b, small[0], small[2]), dtype), randn((b, small[2], small[1]), dtype)
    d3 = randn((b, small[0], small[1]), dtype)
    w3 = randn((8, min(k, 64), min(k, 64)), dtype)
    i3 = randn((m, min(k, 64)), dtype)
    p = rng.choice((1.0, 2.0))
    calls: dict[str, tuple[Callable[[], Any], list[Tensor]]] = {
        "mm": (lambda: a @ c, [a, c]),
        "addmm": (lambda: torch.addmm(bias, a, c), [bias, a, c]),
        "linear": (lambda: F.linear(a, w, bias), [a, w, bias]),
        "linear_gelu": (lambda: F.gelu(F.linear(a, w, bias)), [a, w, bias]),
        "bmm": (lambda: torch.bmm(a3, c3), [a3, c3]),
        "baddbmm": (lambda: torch.baddbmm(d3, a3, c3), [d3, a3, c3]),
        "einsum": (lambda: torch.einsum("bmk,bkn->mbn", a3, c3), [a3, c3]),
        "cdist": (lambda: torch.cdist(a, w, p), [a, w]),
        "matvec": (lambda: a @ c[:, 0], [a, c]),
        "dot": (lambda: torch.dot(bias, bias), [bias]),
        "outer": (lambda: torch.outer(bias, bias) if n < 5000 else bias * 1, [bias]),
        "bilinear_layer": (lambda: F.bilinear(i3, i3, w3), [i3, w3]),
    }
    call, wrt = calls[kind]
    return Case(kind, {"m": m, "n": n, "k": k, "b": b, "dt": dtype, "p": p}, call, wrt)


@case(MAKERS, 3)
def pointwise(rng: random.Random) -> Case:
    kind = rng.choice(("dropout", "dropout2d", "alpha_dropout", "gelu", "silu", "glu", "prelu", "bernoulli", "normal",
                       "multihead", "weight_norm", "spectral_norm"))  # fmt: skip
    dtype = float_dtype(rng)
    x = randn((max(2, numel(rng, 1, 12)), 4, 16, 16), dtype)
    weight = randn((4,), dtype)
    module: nn.Module | None = None
    wrt = [x]
    if kind == "multihead":
        module = nn.MultiheadAttention(64, 4, batch_first=True).to("cuda", DTYPES[dtype])
        y = randn((4, 100, 64), dtype)
        wrt = [y, *module.parameters()]
    elif kind in ("weight_norm", "spectral_norm"):
        wrapper = (
            nn.utils.parametrizations.weight_norm if kind == "weight_norm" else nn.utils.parametrizations.spectral_norm
        )
        module = wrapper(nn.Conv2d(4, 8, 3).to("cuda", DTYPES[dtype]))
        wrt = [x, *module.parameters()]
    calls: dict[str, Callable[[], Any]] = {
        "dropout": lambda: F.dropout(x, 0.1, True),
        "dropout2d": lambda: F.dropout2d(x, 0.1, True),
        "alpha_dropout": lambda: F.alpha_dropout(x, 0.1, True),
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "glu": lambda: F.glu(x, 1),
        "prelu": lambda: F.prelu(x, weight),
        "bernoulli": lambda: torch.bernoulli(torch.full_like(x, 0.5)),
        "normal": lambda: torch.randn_like(x) + x,
        "multihead": lambda: module(y, y, y, need_weights=False)[0],
        "weight_norm": lambda: module(x),
        "spectral_norm": lambda: module(x),
    }
    return Case(kind, {"shape": list(x.shape), "dt": dtype}, calls[kind], wrt)
