"""Pooling and resampling of images, Fourier transforms, recurrent networks, sparse tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2, prod

from vramcast.timing.costs.card import Card
from vramcast.timing.costs.families.elementwise import made_contiguous
from vramcast.timing.costs.families.gemm import tiled_seconds, unit_of
from vramcast.timing.costs.part import Part, feature
from vramcast.timing.costs.signature import Arguments, Tensor
from vramcast.trace.recurrent import GRU, LSTM, RNN_RELU, RNN_TANH, has_small_kernel, has_static_kernel

_INSTRUCTIONS = 100.0
_THREADS_OF_AN_SM = 1024
# Four additions of an element to a smaller image, where as many neighbours as it is enlarged by add to the same place;
# how their waiting grows was read off the H200's times.
_ADDING_INSTRUCTIONS = 60.0
_SHARED_POWER = 1.65
_MOST_SHARED = 64.0
# The product of a backward step goes over all gates of a hidden state. Deeper than this it is split, and what its parts
# give is added up by a kernel of its own, or cleared before; read off recorded steps.
_UNSPLIT_DEPTH = {4: 816, 2: 2624}
# aten/src/ATen/native/cuda/UpSampleBilinear2d.cu has a kernel for channels last from so many channels on.
_CHANNELS_LAST_KERNEL = 4
# Weights that stay in the multiprocessors: cycles of a time step, and of each byte of them, read off the H200's times.
_RESIDENT_STEP_CYCLES = 500.0
_RESIDENT_BYTE_CYCLES = 0.015
_RESIDENT_BACKWARD_KERNELS = 11
_GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}


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


@dataclass(frozen=True)
class _Network:
    """One call of cuDNN's recurrent networks.

    _cudnn_rnn(input, weights, weight_stride0, buffer, hx, cx, mode, hidden, projected, layers, batch_first, dropout,
    train, bidirectional, batch_sizes, ...); the backward call begins with the same and has four more tensors after cx.
    Weights that autocast made are flat: their rows are those of the gates.
    """

    x: Tensor
    weights: list[Tensor]
    mode: int
    hidden: int
    steps: int
    batch: int
    is_standard: bool
    """No persistent kernel may run it: packed, projected, bfloat16 or double."""
    directions: int

    @staticmethod
    def of(args: Arguments, *, backward: bool) -> _Network | None:
        x, settings = args.tensor(0), args.args[10:19] if backward else args.args[6:15]
        weights = [weight for weight in args.tensor_list(1) if len(weight.shape) == 2]
        if x is None or not weights or len(x.shape) not in (2, 3) or len(settings) < 8:
            return None
        mode, hidden, projected, _, batch_first, _, _, two_way = settings[:8]
        sizes = settings[8] if len(settings) > 8 else []
        if not isinstance(mode, int) or not isinstance(hidden, int) or mode not in _GATES:
            return None
        if isinstance(sizes, list) and sizes:  # packed: how many sequences are left at each step
            steps, batch = len(sizes), max(1, x.shape[0] // len(sizes))
        elif len(x.shape) == 2:
            steps, batch = x.shape[0], 1
        else:
            steps, batch = (x.shape[1], x.shape[0]) if batch_first is True else (x.shape[0], x.shape[1])
        standard = bool(sizes) or bool(projected) or x.dtype in ("bf16", "f64")
        return _Network(x, weights, mode, hidden, steps, batch, standard, 2 if two_way is True else 1)

    @property
    def gates(self) -> int:
        return _GATES[self.mode] * self.hidden

    @property
    def matrices(self) -> list[Tensor]:
        return [weight for weight in self.weights if weight.numel > 2 * self.gates]

    def is_small(self, *, backward: bool) -> bool:
        """A multiprocessor holds all weights of a layer."""
        return not self.is_standard and has_small_kernel(self.mode, self.hidden, backward=backward)

    @property
    def is_static(self) -> bool:
        """Whether all multiprocessors together hold them."""
        layers = len(self.matrices) // 2 // self.directions
        return not self.is_standard and self.x.dtype == "f16" and has_static_kernel(
            self.mode, self.hidden, input_size=self.x.shape[-1], layers=layers, directions=self.directions,
            batch=self.batch,
        )  # fmt: skip


def recurrent(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    network = _Network.of(args, backward=False)
    return [] if network is None else [_recurrent(network, card, cudnn_tf32, backward=False)]


def recurrent_backward(args: Arguments, card: Card, tf32: bool, cudnn_tf32: bool) -> list[Part]:
    network = _Network.of(args, backward=True)
    if network is None:
        return []
    part = _recurrent(network, card, cudnn_tf32, backward=True)
    if network.is_small(backward=True):
        return [replace(part, flops=2 * part.flops, bytes=2 * part.bytes)]
    is_split = network.gates > _UNSPLIT_DEPTH.get(network.x.item, 0) and not network.is_static
    return [
        replace(
            part,
            kind=f"{part.kind}-backward",
            base=2 * part.base,
            flops=2 * part.flops,
            bytes=2 * part.bytes,
            kernels=part.kernels * 3 // 2 if is_split else part.kernels,
        )
    ]


def _recurrent(network: _Network, card: Card, cudnn_tf32: bool, *, backward: bool) -> Part:
    """The gates of all steps from the inputs at once, then one product a step."""
    x, steps, batch, gates = network.x, network.steps, network.batch, network.gates
    unit = unit_of(x.dtype, cudnn_tf32 and card.has_tf32)
    seconds, flops = 0.0, 0.0
    for place, weight in enumerate(network.matrices):
        width = max(weight.numel // gates, 1)
        flops += 2.0 * steps * batch * gates * width
        if place % 2 == 0:
            seconds += tiled_seconds(card, 1, steps * batch, gates, width, unit)
        else:
            seconds += steps * max(tiled_seconds(card, 1, batch, gates, width, unit), weight.nbytes / card.bandwidth)
    moved = float(sum(weight.nbytes for weight in network.weights) + 2 * x.nbytes)
    layers = max(len(network.matrices) // 2, 1)
    base = max(seconds, 1e-9) + steps * layers * 2e-6
    tags = (x.dtype, "lstm" if network.mode == LSTM else "other")
    if network.is_small(backward=backward):
        cycles = _RESIDENT_STEP_CYCLES + gates * network.hidden * x.item * _RESIDENT_BYTE_CYCLES
        base = steps * layers * cycles / card.clock
        kernels = _RESIDENT_BACKWARD_KERNELS * layers if backward else 2 + 2 * layers
        return Part("recurrent-resident", base, flops, moved, unit, kernels=kernels)
    if network.is_static:
        return Part("recurrent-persistent", base, flops, moved, unit, tags=tags, kernels=1 + 2 * layers)
    # A product and what follows it, step after step.
    return Part("recurrent", base, flops, moved, unit, tags=tags, kernels=2 * steps * layers)


SPARSE_PRODUCTS = ("mm", "addmm", "_sparse_addmm")
_PRODUCT_KERNELS = 28
"""A tensor that is not coalesced, as those of scripts are, is sorted and summed first (pygcn in the zoo: 269 launches
in a step with six products)."""


def sparse(name: str, args: Arguments, card: Card) -> list[Part]:
    """Its size is not in the shape: what the text says is an upper bound, so only what is dense is counted."""
    dense = [tensor for tensor in args.tensors if not tensor.sparse]
    moved = float(2 * sum(tensor.nbytes for tensor in dense if tensor.numel < 2**24))
    kernels = _PRODUCT_KERNELS if name in SPARSE_PRODUCTS else 10
    return [Part(f"sparse-{name}", max(moved / card.bandwidth, 1e-6), 0.0, moved, tags=(name,), kernels=kernels)]


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
