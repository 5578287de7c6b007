"""Operators other than convolutions: random cases and what their forward and backward allocate."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from workspace_sweep.record import record

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64}
HEADER = "id,op,parameters,forward,forward_peak,backward,backward_peak,notes,error"


@dataclass
class Case:
    """A call to record, and the tensors whose gradients its backward is asked for."""

    op: str
    parameters: dict[str, Any]
    forward: Callable[[], Any]
    wrt: Sequence[Tensor] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    backward_context: Callable[[], Any] = nullcontext


Maker = Callable[[random.Random], Case]
MAKERS: dict[str, tuple[float, Maker]] = {}


def case(weight: float) -> Callable[[Maker], Maker]:
    """Register a maker; `weight` is its share of the draws."""

    def register(maker: Maker) -> Maker:
        MAKERS[maker.__name__] = (weight, maker)
        return maker

    return register


def _float(rng: random.Random, *names: str) -> str:
    return rng.choice(names or ("f32", "f32", "bf16", "bf16", "f16"))


def _numel(rng: random.Random, low: float = 0, high: float = 26) -> int:
    exact = round(2 ** rng.uniform(low, high))
    return exact if rng.random() < 0.6 else 2 ** max(0, exact.bit_length() - 1)


def _randn(shape: Sequence[int], dtype: str, grad: bool = True) -> Tensor:
    tensor = torch.zeros(tuple(shape), dtype=DTYPES[dtype], device="cuda")
    return tensor.requires_grad_(grad)


def _first_tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in _first_tensors(item)]
    data = getattr(result, "data", None)
    return [data] if isinstance(data, Tensor) else []


def measure(index: int, rng: random.Random) -> str:
    """One CSV row for one random case."""
    name = rng.choices(list(MAKERS), [weight for weight, _ in MAKERS.values()])[0]
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(index)
    made = MAKERS[name][1](rng)
    forward = record(made.forward)
    backward_history, backward_peak, error = "", 0, forward.error
    if made.wrt and not error:
        outputs = [tensor for tensor in _first_tensors(forward.result) if tensor.requires_grad][:1]
        grads = [torch.zeros_like(tensor) for tensor in outputs]
        # The graph must die with the call, as it does in training; `outputs` holds only results.
        forward = type(forward)(None, forward.history, forward.peak_bytes, "")
        with made.backward_context():
            backward = record(lambda: torch.autograd.grad(outputs, list(made.wrt), grads, allow_unused=True))
        backward_history, backward_peak = backward.history, backward.peak_bytes
        error = backward.error and f"backward: {backward.error}"
    torch.cuda.synchronize()
    parameters = json.dumps(made.parameters, separators=(";", "="), sort_keys=True).replace('"', "").replace(",", " ")
    notes = json.dumps(made.notes, separators=(";", "="), sort_keys=True).replace('"', "").replace(",", " ")
    fields = [index, made.op, parameters, forward.history[:8000], forward.peak_bytes, backward_history[:8000], backward_peak,
              notes, error.replace(",", ";")]  # fmt: skip
    return ",".join(map(str, fields))


# --- attention -----------------------------------------------------------------------------------------------


BACKENDS = {
    "default": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@case(26)
def attention(rng: random.Random) -> Case:
    dtype = _float(rng, "f32", "bf16", "bf16", "f16")
    batch, heads = rng.choice((1, 2, 3, 4, 8, 16)), rng.choice((1, 2, 4, 6, 8, 12, 16, 32))
    head = rng.choice((16, 32, 40, 64, 64, 64, 72, 80, 96, 128, 128, 160, 192, 256, 320, 37))
    value_head = head if rng.random() < 0.94 else rng.choice((32, 64, 128))
    length = rng.choice((1, 7, 49, 64, 77, 100, 128, 196, 197, 256, 257, 512, 577, 1000, 1024, 1500, 2048, 4096))
    kv_length = length if rng.random() < 0.7 else rng.choice((1, 7, 77, 128, 196, 226, 512, 1024, 1500, 2048))
    gqa = rng.random() < 0.15 and heads % 2 == 0
    kv_heads = heads // rng.choice([g for g in (2, 4, 8) if heads % g == 0]) if gqa else heads
    while batch > 1 and batch * heads * length * kv_length > 3e8:
        batch //= 2
    while heads > kv_heads and batch * heads * length * kv_length > 3e8:
        heads -= kv_heads
    causal = rng.random() < 0.35
    mask_kind = "none" if causal else rng.choices(("none", "bool", "float", "key", "grad"), (60, 12, 14, 10, 4))[0]
    dropout = 0.0 if rng.random() < 0.75 else 0.1
    backend = rng.choices(list(BACKENDS), (55, 15, 13, 10, 7))[0]
    layout = rng.choice(("bhsd", "bshd", "packed"))
    grad = rng.random() < 0.9

    def make(count: int, steps: int, width: int) -> Tensor:
        if layout == "bhsd":
            return _randn((batch, count, steps, width), dtype, grad)
        return _randn((batch, steps, count, width), dtype, False).transpose(1, 2).requires_grad_(grad)

    if layout == "packed" and length == kv_length and kv_heads == heads and value_head == head:
        packed = _randn((batch, length, 3, heads, head), dtype, False)
        q, k, v = (part.transpose(1, 2).detach().requires_grad_(grad) for part in packed.unbind(2))
    else:
        layout = "bshd" if layout == "packed" else layout
        q, k, v = make(heads, length, head), make(kv_heads, kv_length, head), make(kv_heads, kv_length, value_head)
    mask = None
    shape = (batch, 1, length, kv_length) if rng.random() < 0.7 else (batch, heads, length, kv_length)
    if mask_kind == "bool":
        mask = torch.ones(shape, dtype=torch.bool, device="cuda")
    elif mask_kind in ("float", "grad"):
        mask = _randn(shape, dtype, mask_kind == "grad")
    elif mask_kind == "key":
        mask = torch.ones((batch, 1, 1, kv_length), dtype=torch.bool, device="cuda")
    wanted = BACKENDS[backend]
    chosen: Any = "?"
    try:
        chosen = torch._fused_sdp_choice(q, k, v, mask, dropout, causal, scale=None, enable_gqa=gqa)
    except (RuntimeError, TypeError) as failure:
        chosen = str(failure).splitlines()[0][:40]

    def forward() -> Tensor:
        context = nullcontext() if wanted is None else sdpa_kernel(wanted)
        with context:
            return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=gqa)

    parameters = {
        "B": batch, "H": heads, "KH": kv_heads, "S": length, "T": kv_length, "D": head, "DV": value_head, "dt": dtype,
        "causal": int(causal), "mask": mask_kind, "mh": int(shape[1] == heads), "drop": dropout, "want": backend,
        "lay": layout, "grad": int(grad), "gqa": int(gqa),
    }  # fmt: skip
    made = Case("sdpa", parameters, forward, [t for t in (q, k, v, mask) if t is not None and t.requires_grad])
    made.notes["choice"] = chosen
    original = forward

    def noted() -> Tensor:
        result = original()
        if result.grad_fn is not None:
            made.notes["ran"] = type(result.grad_fn).__name__
        return result

    made.forward = noted
    return made


# --- recurrent networks --------------------------------------------------------------------------------------


@case(10)
def recurrent(rng: random.Random) -> Case:
    kind = rng.choice(("LSTM", "GRU", "RNN"))
    dtype = _float(rng, "f32", "f32", "f16", "bf16")
    layers, hidden = rng.randint(1, 4), rng.choice((16, 64, 100, 128, 256, 300, 512, 650, 1024))
    inputs = rng.choice((1, 13, 40, 80, hidden, hidden, 300))
    steps, batch = rng.choice((1, 5, 20, 35, 64, 100, 128, 250, 500)), rng.choice((1, 2, 8, 16, 20, 32, 64, 128))
    options = {
        "num_layers": layers, "bidirectional": rng.random() < 0.4, "batch_first": rng.random() < 0.5,
        "dropout": rng.choice((0.0, 0.0, 0.3)) if layers > 1 else 0.0, "bias": rng.random() < 0.9,
    }  # fmt: skip
    if kind == "LSTM" and rng.random() < 0.15:
        options["proj_size"] = max(1, hidden // 2)
    training, packed = rng.random() < 0.9, rng.random() < 0.2
    autocast = dtype != "f32" and rng.random() < 0.4
    module: nn.RNNBase = getattr(nn, kind)(inputs, hidden, device="meta", **options).to_empty(device="cpu")
    moved = record(lambda: module.to(device="cuda", dtype=torch.float32 if autocast else DTYPES[dtype]))
    module.train(training)
    shape = (batch, steps, inputs) if options["batch_first"] else (steps, batch, inputs)
    x: Any = _randn(shape, "f32" if autocast else dtype, rng.random() < 0.7)
    lengths = [steps] * batch
    if packed:
        lengths = sorted((rng.randint(1, steps) for _ in range(batch)), reverse=True)
        lengths[0] = steps
        x = nn.utils.rnn.pack_padded_sequence(x.detach(), torch.tensor(lengths), batch_first=options["batch_first"])

    def forward() -> Any:
        with torch.autocast("cuda", DTYPES[dtype], enabled=autocast):
            return module(x)

    parameters = {
        "kind": kind, "dt": dtype, "in": inputs, "hidden": hidden, "T": steps, "B": batch, "train": int(training),
        "packed": int(packed), "autocast": int(autocast), "sum": sum(lengths) if packed else steps * batch,
        **{name: value if isinstance(value, float) else int(value) for name, value in options.items()},
    }  # fmt: skip
    wrt = list(module.parameters()) if training else []
    if isinstance(x, Tensor) and x.requires_grad and training:
        wrt.append(x)
        parameters["xgrad"] = 1
    made = Case("rnn", parameters, forward, wrt)
    made.notes["moved"] = moved.history
    return made


# --- normalisation -------------------------------------------------------------------------------------------


@case(8)
def batch_norm(rng: random.Random) -> Case:
    dims = rng.choice((0, 1, 2, 2, 2, 3))
    batch, channels = rng.choice((1, 2, 4, 8, 16, 32, 64, 128)), rng.choice((3, 16, 37, 64, 128, 256, 512, 1024, 2048))
    side = {0: 1, 1: 2000, 2: 112, 3: 24}[dims]
    size = tuple(rng.randint(2, side) for _ in range(1)) * dims if dims else ()
    while dims and batch > 1 and batch * channels * torch.Size(size).numel() > 3e8:
        batch //= 2
    dtype, parameter_dtype = _float(rng), rng.choice(("f32", "f32", "same"))
    layout = rng.choice(("nchw", "nhwc")) if dims > 1 else "nchw"
    x = _randn((max(2, batch), channels, *size), dtype, False)
    if layout == "nhwc":
        x = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    x = x.requires_grad_()
    kind = dtype if parameter_dtype == "same" else "f32"
    weight, bias = _randn((channels,), kind), _randn((channels,), kind)
    mean, variance = _randn((channels,), kind, False), _randn((channels,), kind, False)
    training = rng.random() < 0.85
    parameters = {"shape": list(x.shape), "dt": dtype, "pdt": kind, "lay": layout, "train": int(training)}
    made = Case("batch_norm", parameters, lambda: F.batch_norm(x, mean, variance, weight, bias, training, 0.1, 1e-5),
                [x, weight, bias])  # fmt: skip
    return made


@case(7)
def other_norms(rng: random.Random) -> Case:
    kind = rng.choice(("layer", "layer", "rms", "group", "group", "instance"))
    dtype = _float(rng)
    if kind in ("layer", "rms"):
        rows, width = _numel(rng, 0, 16), rng.choice((32, 96, 192, 384, 768, 1000, 1024, 1280, 2048, 4096, 8192))
        x = _randn((max(1, min(rows, int(2e8) // width)), width), dtype)
        mixed = rng.random() < 0.2
        weight = _randn((width,), "f32" if mixed else dtype)
        bias = _randn((width,), "f32" if mixed else dtype)
        call = (
            (lambda: F.layer_norm(x, (width,), weight, bias))
            if kind == "layer"
            else (lambda: F.rms_norm(x, (width,), weight))
        )
        wrt = [x, weight, bias] if kind == "layer" else [x, weight]
        parameters: dict[str, Any] = {"shape": list(x.shape), "dt": dtype, "mixed": int(mixed)}
    else:
        channels, side = rng.choice((32, 64, 128, 320, 512, 640, 1280)), rng.choice((8, 16, 31, 32, 64, 128))
        batch = rng.choice((1, 2, 4, 8, 16))
        while batch > 1 and batch * channels * side * side > 1e8:
            batch //= 2
        x = _randn((batch, channels, side, side), dtype, False)
        cl = rng.random() < 0.4
        x = (x.contiguous(memory_format=torch.channels_last) if cl else x).requires_grad_()
        weight, bias = _randn((channels,), dtype), _randn((channels,), dtype)
        wrt = [x, weight, bias]
        if kind == "group":
            call = lambda: F.group_norm(x, 32, weight, bias)
        else:
            call = lambda: F.instance_norm(x, None, None, weight, bias)
        parameters = {"shape": list(x.shape), "dt": dtype, "cl": int(cl)}
    return Case(f"{kind}_norm", parameters, call, wrt)


# --- losses, embeddings, dropout ----------------------------------------------------------------------------


@case(4)
def ctc(rng: random.Random) -> Case:
    steps, batch, classes = (
        rng.choice((50, 100, 250, 500, 1000)),
        rng.choice((1, 2, 4, 8, 16, 32)),
        rng.choice((28, 32, 80, 1000)),
    )
    labels = rng.randint(1, min(steps // 2, 200))
    device = rng.choice(("cpu", "cuda"))
    x = _randn((steps, batch, classes), "f32").detach().log_softmax(-1).requires_grad_()
    targets = torch.randint(1, classes, (batch, labels), dtype=torch.int32 if device == "cpu" else torch.int64)
    lengths_in = torch.full((batch,), steps, dtype=torch.int32)
    lengths = torch.full((batch,), labels, dtype=torch.int32)
    if device == "cuda":
        targets = targets.cuda()
    else:
        targets = targets.reshape(-1)
    parameters = {"T": steps, "B": batch, "C": classes, "S": labels, "device": device}
    return Case("ctc_loss", parameters, lambda: F.ctc_loss(x, targets, lengths_in, lengths, zero_infinity=False), [x])


@case(5)
def losses(rng: random.Random) -> Case:
    kind = rng.choice(
        (
            "cross_entropy",
            "cross_entropy",
            "cross_entropy_2d",
            "nll_2d",
            "mse",
            "smooth_l1",
            "bce_logits",
            "kl",
            "cosine",
        )
    )
    dtype = _float(rng)
    if kind in ("cross_entropy", "mse", "smooth_l1", "bce_logits", "kl", "cosine"):
        rows, classes = _numel(rng, 0, 14), rng.choice((2, 10, 100, 1000, 1024, 32000, 50257))
        rows = max(1, min(rows, int(3e8) // classes))
        x = _randn((rows, classes), dtype)
    else:
        rows, classes = rng.choice((1, 2, 4, 8)), rng.choice((2, 19, 21, 151))
        x = _randn((rows, classes, 128, 128), dtype)
    reduction = rng.choice(("mean", "mean", "sum", "none"))
    options: dict[str, Any] = {"reduction": reduction}
    if kind.startswith(("cross", "nll")):
        target = torch.zeros((x.shape[0], *x.shape[2:]), dtype=torch.int64, device="cuda")
        if kind.startswith("cross"):
            options["label_smoothing"] = rng.choice((0.0, 0.0, 0.1))
            call = lambda: F.cross_entropy(x, target, **options)
        else:
            call = lambda: F.nll_loss(x, target, **options)
    else:
        other = _randn(x.shape, dtype, False)
        function = {"mse": F.mse_loss, "smooth_l1": F.smooth_l1_loss, "bce_logits": F.binary_cross_entropy_with_logits,
                    "kl": F.kl_div}.get(kind)  # fmt: skip
        if function is None:
            options = {}
            call = lambda: F.cosine_similarity(x, other)
        else:
            call = lambda: function(x, other, **options)
    return Case(kind, {"shape": list(x.shape), "dt": dtype, **options}, call, [x])


@case(4)
def embedding(rng: random.Random) -> Case:
    dtype = _float(rng)
    rows, width = (
        rng.choice((2, 512, 1024, 30522, 32000, 50257, 152064)),
        rng.choice((16, 64, 128, 512, 768, 1024, 2048)),
    )
    count = _numel(rng, 0, 17)
    options = {"scale_grad_by_freq": rng.random() < 0.1}
    weight = _randn((rows, width), dtype)
    index = torch.randint(0, rows, (count,), device="cuda")
    if rng.random() < 0.2:
        bags = torch.arange(0, count, 4, device="cuda")
        mode = rng.choice(("sum", "mean", "max"))
        if mode == "max":
            options = {"scale_grad_by_freq": False}
        return Case("embedding_bag", {"rows": rows, "width": width, "n": count, "dt": dtype, "mode": mode, **options},
                    lambda: F.embedding_bag(index, weight, bags, mode=mode, **options), [weight])  # fmt: skip
    return Case("embedding", {"rows": rows, "width": width, "n": count, "dt": dtype, **options},
                lambda: F.embedding(index, weight, **options), [weight])  # fmt: skip


# --- sorting, scans, indexing -------------------------------------------------------------------------------


def _vector_or_matrix(rng: random.Random) -> tuple[int, ...]:
    total = _numel(rng, 0, 25)
    if rng.random() < 0.5:
        return (total,)
    rows = min(total, _numel(rng, 0, 14))
    return (rows, max(1, total // rows))


@case(14)
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


@case(7)
def indexing(rng: random.Random) -> Case:
    kind = rng.choice(("index_backward", "index_put", "index_put_accumulate", "index_add", "scatter", "scatter_add",
                       "gather_backward", "index_select_backward", "take_along", "repeat_interleave", "index_copy"))  # fmt: skip
    dtype = _float(rng)
    rows, width = _numel(rng, 1, 17), rng.choice((1, 3, 64, 256, 768))
    count = _numel(rng, 0, 17)
    if max(rows, count) * width > 1e8:
        width = 64
    grad = kind.endswith("backward")
    x = _randn((rows, width), dtype, grad)
    index = torch.randint(0, rows, (count,), device="cuda")
    wide = index[:, None].expand(count, width)
    values = _randn((count, width), dtype, False)
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


@case(6)
def reductions(rng: random.Random) -> Case:
    kind = rng.choice(("sum", "mean", "amax", "max", "argmax", "var", "std", "norm", "logsumexp", "softmax", "log_softmax",
                       "foreach_norm", "clip_grad", "vector_norm", "prod", "any", "count_nonzero", "all_close"))  # fmt: skip
    dtype = _float(rng)
    shape = _vector_or_matrix(rng)
    x = _randn(shape, dtype)
    dim = rng.choice((None, 0, -1))
    if kind in ("logsumexp", "softmax", "log_softmax", "max", "prod") and dim is None:
        dim = -1
    count = rng.choice((1, 5, 40, 300))
    pieces = [_randn((max(1, x.numel() // count),), dtype, False) for _ in range(count)]
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


@case(9)
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
        x = _randn((*batch, *size), "f32")
        call = lambda: torch.fft.rfftn(x, dim=axes, norm=norm)
    else:
        shape = (*batch, *size[:-1], last) if kind == "irfft" else (*batch, *size)
        x = torch.zeros(shape, dtype=torch.complex64, device="cuda", requires_grad=True)
        function = {"irfft": torch.fft.irfftn, "fft": torch.fft.fftn, "ifft": torch.fft.ifftn}[kind]
        s = size if kind == "irfft" else None
        call = lambda: function(x, s=s, dim=axes, norm=norm)
    return Case(f"{kind}n", {"batch": list(batch), "size": list(size), "norm": norm}, call, [x])


# --- the rest ------------------------------------------------------------------------------------------------


@case(7)
def images(rng: random.Random) -> Case:
    kind = rng.choice(("bilinear", "bicubic", "nearest", "trilinear", "grid_sample", "max_pool", "avg_pool", "adaptive",
                       "pixel_shuffle", "reflection_pad", "unfold", "fold", "antialias"))  # fmt: skip
    dtype = _float(rng)
    batch, channels, side = rng.choice((1, 2, 4, 8)), rng.choice((3, 16, 64, 128)), rng.choice((16, 31, 32, 64, 128))
    dims = 3 if kind == "trilinear" else 2
    side = min(side, 32) if dims == 3 else side
    x = _randn((batch, channels, *(side,) * dims), dtype, False)
    cl = rng.random() < 0.3 and dims == 2
    x = (x.contiguous(memory_format=torch.channels_last) if cl else x).requires_grad_()
    grid = _randn((batch, side, side, 2), dtype)
    columns = _randn((batch, 9 * channels, side * side), dtype)
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


@case(5)
def optimizers(rng: random.Random) -> Case:
    name = rng.choice(
        ("AdamW", "AdamW", "Adam", "SGD", "Adagrad", "RMSprop", "NAdam", "Adafactor", "RAdam", "Adadelta")
    )
    mode = (
        rng.choice(("foreach", "fused", "single"))
        if name in ("AdamW", "Adam", "SGD", "Adagrad")
        else rng.choice(("foreach", "single"))
    )
    dtype = _float(rng, "f32", "f32", "bf16")
    count, size = rng.choice((1, 3, 30, 200)), _numel(rng, 4, 18)
    parameters = [nn.Parameter(_randn((size,), dtype, False)) for _ in range(count)]
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


@case(6)
def matrices(rng: random.Random) -> Case:
    kind = rng.choice(("mm", "addmm", "linear", "linear", "bmm", "baddbmm", "einsum", "cdist", "matvec", "linear_gelu", "dot",
                       "bilinear_layer", "outer"))  # fmt: skip
    dtype = _float(rng)
    m, n, k = (max(1, _numel(rng, 0, 13)) for _ in range(3))
    b = rng.choice((1, 2, 8, 16))
    if kind == "cdist":
        dtype, m, n, k = "f32", min(m, 2000), min(n, 2000), min(k, 64)
    if kind == "bilinear_layer":
        m, n, k = min(m, 256), min(n, 128), min(k, 128)
    a, c = _randn((m, k), dtype), _randn((k, n), dtype)
    w, bias = _randn((n, k), dtype), _randn((n,), dtype)
    small = [min(extent, 1024) for extent in (m, n, k)]
    a3, c3 = _randn((b, small[0], small[2]), dtype), _randn((b, small[2], small[1]), dtype)
    d3 = _randn((b, small[0], small[1]), dtype)
    w3 = _randn((8, min(k, 64), min(k, 64)), dtype)
    i3 = _randn((m, min(k, 64)), dtype)
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


@case(3)
def pointwise(rng: random.Random) -> Case:
    kind = rng.choice(("dropout", "dropout2d", "alpha_dropout", "gelu", "silu", "glu", "prelu", "bernoulli", "normal",
                       "multihead", "weight_norm", "spectral_norm"))  # fmt: skip
    dtype = _float(rng)
    x = _randn((max(2, _numel(rng, 1, 12)), 4, 16, 16), dtype)
    weight = _randn((4,), dtype)
    module: nn.Module | None = None
    wrt = [x]
    if kind == "multihead":
        module = nn.MultiheadAttention(64, 4, batch_first=True).to("cuda", DTYPES[dtype])
        y = _randn((4, 100, 64), dtype)
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
