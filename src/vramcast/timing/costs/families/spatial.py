"""Pooling and resampling of images, Fourier transforms, recurrent networks, sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2, prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.elementwise import made_contiguous
from vramcast.timing.costs.families.gemm import tiled_seconds, unit_of
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor, Value

_INSTRUCTIONS = 100.0
_THREADS_OF_AN_SM = 1024
_PERSISTENT_WIDTH = 128
# Four additions of an element to a smaller image, where as many neighbours as it is enlarged by add to the same place;
# how their waiting grows was read off the H200's times.
_ADDING_INSTRUCTIONS = 60.0
_SHARED_POWER = 1.65
_MOST_SHARED = 64.0
_UNSPLIT_WIDTH = 512
# aten/src/ATen/native/cuda/UpSampleBilinear2d.cu has a kernel for channels last from so many channels on.
_CHANNELS_LAST_KERNEL = 4
# What cuDNN numbers its networks by (cudnnRNNMode_t), and the gates of each.
_LSTM = 2
_GATES = {0: 1, 1: 1, _LSTM: 4, 3: 3}


def _image(name: str, card: Card, x: Tensor, out: int, moved: float, threads: int, window: int = 1) -> Part:
    """`threads` of them share the elements; too few leave the card idle."""
    large = max(out, x.numel)
    idle = max(card.sms * _THREADS_OF_AN_SM / max(threads, 1), 1.0)
    base = max(moved / card.bandwidth, large * _INSTRUCTIONS * idle / card.issue)
    last = x.strides is not None and x.order[-1:] == (1,) and len(x.shape) > 2
    tags = (name, f"{name}/{'nhwc' if last else 'nchw'}", f"{name}/{x.item}-byte")
    return Part(f"image-{name}", base, 0.0, moved, "f32", (feature("idle", idle), feature("window", window)), tags)


def pool(name: str, args: Arguments, card: Card) -> list[Part]:
    tensors = [tensor for tensor in args.tensors if tensor.device == "cuda"]
    if not tensors:
        return []
    x = max(tensors, key=lambda tensor: tensor.numel)
    window = prod(args.integers(2 if "backward" in name else 1)) or 1
    moved = float(sum(tensor.nbytes for tensor in tensors))
    if "backward" in name:
        moved += x.numel * tensors[0].item
        if "max_pool" in name:
            zeros = float(x.nbytes)
            main = _image(name, card, x, x.numel, moved, x.numel, window)
            return [main, Part("fill", max(zeros / card.bandwidth, 1e-10), 0.0, zeros)]
    else:
        stride = prod(args.integers(2)) or window
        out = x.numel // max(stride, 1)
        moved += out * (x.item + (8 if "indices" in name else 0))
    return [_image(name, card, x, x.numel, moved, x.numel, window)]


def resample(name: str, args: Arguments, card: Card) -> list[Part]:
    """Bilinear kernels take a thread for each place of the result and loop over images and channels; where channels
    come last, and for the other modes, a thread for each element."""
    x = args.tensor(0)
    if x is None:
        return []
    sizes = args.integers(1)
    lists = [args.integers(index) for index in (1, 2)]
    full = next((sizes_ for sizes_ in lists if len(sizes_) == len(x.shape)), None)
    planes = prod(x.shape[:2])
    out = prod(full) if full else planes * (prod(sizes) or prod(x.shape[2:]))
    moved = float(x.nbytes + out * x.item)
    places = max(out, x.numel) // max(planes, 1)
    last = x.strides is not None and x.order[-1:] == (1,) and x.shape[1] >= _CHANNELS_LAST_KERNEL
    threads = places if "upsample_bilinear" in name and "backward" not in name and not last else max(out, x.numel)
    main = _image(name, card, x, out, moved, threads)
    if "backward" not in name or "nearest" in name:
        return [main]
    # Neighbours add to the same element of the smaller image, and wait for each other; channels that come last do not.
    enlarged = min(max(x.shape[-1] / max(full[-1], 1), 1.0), _MOST_SHARED) if full and not last else 1.0
    adding = x.numel * _ADDING_INSTRUCTIONS * enlarged**_SHARED_POWER / card.issue
    zeros = float(out * x.item)
    return [
        replace(main, base=max(main.base, adding), features=(*main.features, feature("shared", enlarged))),
        Part("fill", max(zeros / card.bandwidth, 1e-10), 0.0, zeros),
        *([] if x.dense else made_contiguous(card, [x])),
    ]


def fourier(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    """A pass over memory for each transformed dimension."""
    x = args.tensor(0)
    if x is None:
        return []
    dims = args.integers(1) or [-1]
    length = prod(x.shape[dim] for dim in dims)
    complex_bytes = x.numel * (x.item if x.dtype.startswith("c") else 2 * x.item)
    moved = float(x.nbytes + complex_bytes)
    passes = max(len(dims), 1)
    flops = 5.0 * x.numel * log2(max(length, 2))
    return [Part("fourier", max(passes * moved / card.bandwidth, 1e-10), flops, moved, "f32", kernels=passes)]


def recurrent(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    return _recurrent(args, card, cudnn_tf32, args.args[6:14])


def _recurrent(args: Arguments, card: Card, cudnn_tf32: bool, settings: Sequence[Value]) -> list[Part]:
    """cuDNN's recurrent networks: gates of all steps from the inputs at once, then one product a step.

    _cudnn_rnn(input, weights, weight_stride0, buffer, hx, cx, mode, hidden, projected, layers, batch_first, dropout,
    train, bidirectional, ...); the backward call begins with the same and has four more tensors after cx. Weights that
    autocast made are flat: their rows are those of the gates.
    """
    x = args.tensor(0)
    weights = [weight for weight in args.tensor_list(1) if len(weight.shape) == 2]
    if x is None or not weights or len(x.shape) != 3 or len(settings) < 5:
        return []
    mode, hidden = settings[0], settings[1]
    steps, batch = (x.shape[1], x.shape[0]) if settings[4] is True else (x.shape[0], x.shape[1])
    gates = (_GATES.get(mode, 1) if isinstance(mode, int) else 1) * (hidden if isinstance(hidden, int) else 1)
    biases = 2 * gates
    matrices = [weight for weight in weights if weight.numel > biases]
    unit = unit_of(x.dtype, cudnn_tf32 and card.has_tf32)
    seconds, flops = 0.0, 0.0
    for place, weight in enumerate(matrices):
        width = max(weight.numel // gates, 1)
        flops += 2.0 * steps * batch * gates * width
        if place % 2 == 0:
            seconds += tiled_seconds(card, 1, steps * batch, gates, width, unit)
        else:
            seconds += steps * max(tiled_seconds(card, 1, batch, gates, width, unit), weight.nbytes / card.bandwidth)
    moved = float(sum(weight.nbytes for weight in weights) + 2 * x.nbytes)
    layers = max(len(matrices) // 2, 1)
    base = max(seconds, 1e-9) + steps * layers * 2e-6
    tags = (x.dtype, "lstm" if mode == _LSTM else "other")
    if isinstance(hidden, int) and hidden <= _PERSISTENT_WIDTH and x.dtype != "bf16":
        # The weights stay in the multiprocessors, and one kernel goes through all steps; BF16 has none of these.
        return [Part("recurrent-persistent", base, flops, moved, unit, tags=tags, kernels=1 + 2 * layers)]
    # A product and what follows it, step after step.
    kernels = 2 * steps * layers
    return [Part("recurrent", base, flops, moved, unit, tags=tags, kernels=kernels)]


def recurrent_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    return [
        replace(
            part,
            kind=f"{part.kind}-backward",
            base=2 * part.base,
            flops=2 * part.flops,
            bytes=2 * part.bytes,
            # Products that are split, or add to what was cleared before, are two kernels.
            kernels=part.kernels * 3 // 2 if _is_split(args) else part.kernels,
        )
        for part in _recurrent(args, card, cudnn_tf32, args.args[10:18])
    ]


def _is_split(args: Arguments) -> bool:
    x, hidden = args.tensor(0), args.args[11] if len(args.args) > 11 else None
    return x is not None and (x.item == 4 or (isinstance(hidden, int) and hidden > _UNSPLIT_WIDTH))


def sparse(name: str, args: Arguments, card: Card) -> list[Part]:
    """Its size is not in the shape: what the text says is an upper bound, so only what is dense is counted."""
    dense = [tensor for tensor in args.tensors if not tensor.sparse]
    moved = float(2 * sum(tensor.nbytes for tensor in dense if tensor.numel < 2**24))
    return [Part(f"sparse-{name}", max(moved / card.bandwidth, 1e-6), 0.0, moved, tags=(name,), kernels=10)]


_POOL_NAMES = (
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d "
    "avg_pool3d_backward adaptive_max_pool2d"
)
POOLS = _POOL_NAMES.split()
_RESAMPLE_NAMES = (
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d upsample_bicubic2d upsample_linear1d "
    "upsample_trilinear3d _upsample_nearest_exact2d _upsample_bilinear2d_aa"
)
RESAMPLES = [name + ending for name in _RESAMPLE_NAMES.split() for ending in ("", "_backward")]
SPARSE = ["_coalesce", "sparse_mask", "_sparse_mm", "to_dense", "_to_dense", "to_sparse", "_sparse_sum"]
FAMILY = {
    "_fft_r2c": fourier, "_fft_c2c": fourier, "_fft_c2r": fourier, "_cudnn_rnn": recurrent,
    "_cudnn_rnn_backward": recurrent_backward,
}  # fmt: skip
