"""Random cases of what networks are made of: attention, recurrent networks, norms, losses, embeddings."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lab.measuring.workspace_sweep.operator_case import DTYPES, Case, Makers, case, float_dtype, numel, randn
from lab.measuring.workspace_sweep.record import record

MAKERS: Makers = {}

# --- attention -----------------------------------------------------------------------------------------------


BACKENDS = {
    "default": None,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@case(MAKERS, 26)
def attention(rng: random.Random) -> Case:
    dtype = float_dtype(rng, "f32", "bf16", "bf16", "f16")
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
            return randn((batch, count, steps, width), dtype, grad)
        return randn((batch, steps, count, width), dtype, False).transpose(1, 2).requires_grad_(grad)

    if layout == "packed" and length == kv_length and kv_heads == heads and value_head == head:
        packed = randn((batch, length, 3, heads, head), dtype, False)
        q, k, v = (part.transpose(1, 2).detach().requires_grad_(grad) for part in packed.unbind(2))
    else:
        layout = "bshd" if layout == "packed" else layout
        q, k, v = make(heads, length, head), make(kv_heads, kv_length, head), make(kv_heads, kv_length, value_head)
    mask = None
    shape = (batch, 1, length, kv_length) if rng.random() < 0.7 else (batch, heads, length, kv_length)
    if mask_kind == "bool":
        mask = torch.ones(shape, dtype=torch.bool, device="cuda")
    elif mask_kind in ("float", "grad"):
        mask = randn(shape, dtype, mask_kind == "grad")
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


@case(MAKERS, 10)
def recurrent(rng: random.Random) -> Case:
    kind = rng.choice(("LSTM", "GRU", "RNN"))
    dtype = float_dtype(rng, "f32", "f32", "f16", "bf16")
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
    x: Any = randn(shape, "f32" if autocast else dtype, rng.random() < 0.7)
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


@case(MAKERS, 8)
def batch_norm(rng: random.Random) -> Case:
    dims = rng.choice((0, 1, 2, 2, 2, 3))
    batch, channels = rng.choice((1, 2, 4, 8, 16, 32, 64, 128)), rng.choice((3, 16, 37, 64, 128, 256, 512, 1024, 2048))
    side = {0: 1, 1: 2000, 2: 112, 3: 24}[dims]
    size = tuple(rng.randint(2, side) for _ in range(1)) * dims if dims else ()
    while dims and batch > 1 and batch * channels * torch.Size(size).numel() > 3e8:
        batch //= 2
    dtype, parameter_dtype = float_dtype(rng), rng.choice(("f32", "f32", "same"))
    layout = rng.choice(("nchw", "nhwc")) if dims > 1 else "nchw"
    x = randn((max(2, batch), channels, *size), dtype, False)
    if layout == "nhwc":
        x = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    x = x.requires_grad_()
    kind = dtype if parameter_dtype == "same" else "f32"
    weight, bias = randn((channels,), kind), randn((channels,), kind)
    mean, variance = randn((channels,), kind, False), randn((channels,), kind, False)
    training = rng.random() < 0.85
    parameters = {"shape": list(x.shape), "dt": dtype, "pdt": kind, "lay": layout, "train": int(training)}
    made = Case("batch_norm", parameters, lambda: F.batch_norm(x, mean, variance, weight, bias, training, 0.1, 1e-5),
                [x, weight, bias])  # fmt: skip
    return made


@case(MAKERS, 7)
def other_norms(rng: random.Random) -> Case:
    kind = rng.choice(("layer", "layer", "rms", "group", "group", "instance"))
    dtype = float_dtype(rng)
    if kind in ("layer", "rms"):
        rows, width = numel(rng, 0, 16), rng.choice((32, 96, 192, 384, 768, 1000, 1024, 1280, 2048, 4096, 8192))
        x = randn((max(1, min(rows, int(2e8) // width)), width), dtype)
        mixed = rng.random() < 0.2
        weight = randn((width,), "f32" if mixed else dtype)
        bias = randn((width,), "f32" if mixed else dtype)
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
        x = randn((batch, channels, side, side), dtype, False)
        cl = rng.random() < 0.4
        x = (x.contiguous(memory_format=torch.channels_last) if cl else x).requires_grad_()
        weight, bias = randn((channels,), dtype), randn((channels,), dtype)
        wrt = [x, weight, bias]
        if kind == "group":
            call = lambda: F.group_norm(x, 32, weight, bias)
        else:
            call = lambda: F.instance_norm(x, None, None, weight, bias)
        parameters = {"shape": list(x.shape), "dt": dtype, "cl": int(cl)}
    return Case(f"{kind}_norm", parameters, call, wrt)


# --- losses, embeddings, dropout ----------------------------------------------------------------------------


@case(MAKERS, 4)
def ctc(rng: random.Random) -> Case:
    steps, batch, classes = (
        rng.choice((50, 100, 250, 500, 1000)),
        rng.choice((1, 2, 4, 8, 16, 32)),
        rng.choice((28, 32, 80, 1000)),
    )
    labels = rng.randint(1, min(steps // 2, 200))
    device = rng.choice(("cpu", "cuda"))
    x = randn((steps, batch, classes), "f32").detach().log_softmax(-1).requires_grad_()
    targets = torch.randint(1, classes, (batch, labels), dtype=torch.int32 if device == "cpu" else torch.int64)
    lengths_in = torch.full((batch,), steps, dtype=torch.int32)
    lengths = torch.full((batch,), labels, dtype=torch.int32)
    if device == "cuda":
        targets = targets.cuda()
    else:
        targets = targets.reshape(-1)
    parameters = {"T": steps, "B": batch, "C": classes, "S": labels, "device": device}
    return Case("ctc_loss", parameters, lambda: F.ctc_loss(x, targets, lengths_in, lengths, zero_infinity=False), [x])


@case(MAKERS, 5)
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
    dtype = float_dtype(rng)
    if kind in ("cross_entropy", "mse", "smooth_l1", "bce_logits", "kl", "cosine"):
        rows, classes = numel(rng, 0, 14), rng.choice((2, 10, 100, 1000, 1024, 32000, 50257))
        rows = max(1, min(rows, int(3e8) // classes))
        x = randn((rows, classes), dtype)
    else:
        rows, classes = rng.choice((1, 2, 4, 8)), rng.choice((2, 19, 21, 151))
        x = randn((rows, classes, 128, 128), dtype)
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
        other = randn(x.shape, dtype, False)
        function = {"mse": F.mse_loss, "smooth_l1": F.smooth_l1_loss, "bce_logits": F.binary_cross_entropy_with_logits,
                    "kl": F.kl_div}.get(kind)  # fmt: skip
        if function is None:
            options = {}
            call = lambda: F.cosine_similarity(x, other)
        else:
            call = lambda: function(x, other, **options)
    return Case(kind, {"shape": list(x.shape), "dt": dtype, **options}, call, [x])


@case(MAKERS, 4)
def embedding(rng: random.Random) -> Case:
    dtype = float_dtype(rng)
    rows, width = (
        rng.choice((2, 512, 1024, 30522, 32000, 50257, 152064)),
        rng.choice((16, 64, 128, 512, 768, 1024, 2048)),
    )
    count = numel(rng, 0, 17)
    options = {"scale_grad_by_freq": rng.random() < 0.1}
    weight = randn((rows, width), dtype)
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
