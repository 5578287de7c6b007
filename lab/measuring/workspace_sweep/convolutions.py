"""Convolution configurations (layers of common networks and random ones) and what each allocates."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, replace

import torch

from lab.measuring.workspace_sweep.record import Recorded, record

LIMIT_BYTES = 4 << 30
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FLOP_LIMIT = {"f32": 1.2e12, "f32x": 4e11, "f16": 2.5e12, "bf16": 2.5e12}


@dataclass(frozen=True)
class Conv:
    """One convolution; `channels_in` and `channels_out` are the module's (also when transposed)."""

    family: str
    batch: int
    channels_in: int
    channels_out: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    dtype: str = "f32"
    tf32: bool = True
    layout: str = "nchw"  # nchw, nhwc (both), x (only the input is channels-last), w (only the weight is)
    bias: bool = True
    benchmark: bool = False

    @property
    def out_size(self) -> tuple[int, ...]:
        sizes = []
        for d, extent in enumerate(self.size):
            reach = self.dilation[d] * (self.kernel[d] - 1)
            if self.transposed:
                sizes.append((extent - 1) * self.stride[d] - 2 * self.padding[d] + reach + 1 + self.output_padding[d])
            else:
                sizes.append((extent + 2 * self.padding[d] - reach - 1) // self.stride[d] + 1)
        return tuple(sizes)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        if self.transposed:
            return (self.channels_in, self.channels_out // self.groups, *self.kernel)
        return (self.channels_out, self.channels_in // self.groups, *self.kernel)

    @property
    def tensor_bytes(self) -> int:
        width = 4 if self.dtype == "f32" else 2
        x = self.batch * self.channels_in * math.prod(self.size)
        y = self.batch * self.channels_out * math.prod(self.out_size)
        return width * 2 * (x + y + math.prod(self.weight_shape))

    @property
    def flops(self) -> float:
        positions = math.prod(self.size if self.transposed else self.out_size)
        return 2.0 * self.batch * positions * math.prod(self.weight_shape)


# cin, cout, kernel, stride, padding, dilation, groups, downscale: `size` is the image's size / downscale.
Layer = tuple[int, int, int | tuple[int, ...], int, int | tuple[int, ...], int, int, int]


def _resnet() -> list[Layer]:
    layers: list[Layer] = [(3, 64, 7, 2, 3, 1, 1, 1)]
    for scale, width in ((4, 64), (8, 128), (16, 256), (32, 512)):
        layers += [(width, width, 3, 1, 1, 1, 1, scale)] * 3
        layers += [(width * 4, width, 1, 1, 0, 1, 1, scale), (width, width * 4, 1, 1, 0, 1, 1, scale)]
        if scale < 32:
            layers += [
                (width * 2, width * 2, 3, 2, 1, 1, 1, scale),
                (width * 4, width * 8, 1, 2, 0, 1, 1, scale),
                (width * 4, width * 2, 1, 1, 0, 1, 1, scale),
                (width, width * 2, 3, 2, 1, 1, 1, scale),
                (width, width * 2, 1, 2, 0, 1, 1, scale),
            ]
    return layers


def _resnext() -> list[Layer]:
    return [(w, w, 3, 1, 1, 1, 32, s) for s, w in ((4, 128), (8, 256), (16, 512), (32, 1024))] + [
        (w, w, 3, 2, 1, 1, 32, s) for s, w in ((4, 256), (8, 512), (16, 1024))
    ]


def _efficientnet() -> list[Layer]:
    layers: list[Layer] = [(3, 32, 3, 2, 1, 1, 1, 1), (32, 32, 3, 1, 1, 1, 32, 2), (32, 16, 1, 1, 0, 1, 1, 2)]
    for scale, width, kernel in ((4, 24, 3), (8, 40, 5), (16, 80, 3), (16, 112, 5), (32, 192, 5), (32, 320, 3)):
        wide = width * 6
        layers += [
            (width, wide, 1, 1, 0, 1, 1, scale),
            (wide, wide, kernel, 1, kernel // 2, 1, wide, scale),
            (wide, wide, kernel, 2, kernel // 2, 1, wide, scale),
            (wide, width, 1, 1, 0, 1, 1, scale),
            (wide, max(1, width // 4), 1, 1, 0, 1, 1, 4096),
            (max(1, width // 4), wide, 1, 1, 0, 1, 1, 4096),
        ]
    return [*layers, (320, 1280, 1, 1, 0, 1, 1, 32)]


def _convnext() -> list[Layer]:
    layers: list[Layer] = [(3, 96, 4, 4, 0, 1, 1, 1), (3, 128, 4, 4, 0, 1, 1, 1)]
    for scale, width in ((4, 96), (8, 192), (16, 384), (32, 768), (4, 128), (8, 256), (16, 512), (32, 1024)):
        layers.append((width, width, 7, 1, 3, 1, width, scale))
        if scale < 32:
            layers.append((width, width * 2, 2, 2, 0, 1, 1, scale))
    return layers


def _vgg() -> list[Layer]:
    widths = ((1, 3, 64), (1, 64, 64), (2, 64, 128), (2, 128, 128), (4, 128, 256), (4, 256, 256), (8, 256, 512))
    layers: list[Layer] = [(a, b, 3, 1, 1, 1, 1, s) for s, a, b in (*widths, (8, 512, 512), (16, 512, 512))]
    return [*layers, (3, 64, 11, 4, 2, 1, 1, 1), (64, 192, 5, 1, 2, 1, 1, 8), (192, 384, 3, 1, 1, 1, 1, 16)]


def _inception() -> list[Layer]:
    return [
        (128, 128, (1, 7), 1, (0, 3), 1, 1, 16),
        (128, 192, (7, 1), 1, (3, 0), 1, 1, 16),
        (384, 384, (1, 3), 1, (0, 1), 1, 1, 32),
        (48, 64, 5, 1, 2, 1, 1, 8),
        (192, 32, 1, 1, 0, 1, 1, 8),
        (37, 51, 3, 1, 1, 1, 1, 4),
        (180, 180, 3, 1, 1, 1, 1, 1),
        (180, 60, 3, 1, 1, 1, 1, 1),
        (60, 180, 1, 1, 0, 1, 1, 1),
    ]


def _unet(widths: tuple[int, ...], channels: int) -> list[Layer]:
    layers: list[Layer] = [
        (channels, widths[0], 3, 1, 1, 1, 1, 1),
        (widths[0], channels, 3, 1, 1, 1, 1, 1),
    ]
    for level, width in enumerate(widths):
        scale, below = 2**level, widths[min(level + 1, len(widths) - 1)]
        layers += [(width, width, 3, 1, 1, 1, 1, scale)] * 3
        layers += [
            (width * 2, width, 3, 1, 1, 1, 1, scale),
            (width + below, width, 3, 1, 1, 1, 1, scale),
            (width + below, width, 1, 1, 0, 1, 1, scale),
            (width, below, 3, 1, 1, 1, 1, scale * 2),
            (width, below, 1, 1, 0, 1, 1, scale * 2),
            (width, width, 3, 2, 1, 1, 1, scale),
            (width, width, 1, 1, 0, 1, 1, scale),
        ]
    return layers


def _deeplab() -> list[Layer]:
    return [
        (256, 256, 3, 1, 2, 2, 1, 8),
        (512, 512, 3, 1, 4, 4, 1, 8),
        (2048, 256, 3, 1, 12, 12, 1, 8),
        (2048, 256, 3, 1, 24, 24, 1, 8),
        (2048, 256, 1, 1, 0, 1, 1, 8),
        (1280, 256, 1, 1, 0, 1, 1, 8),
        (512, 512, 3, 1, 6, 6, 512, 8),
        (256, 21, 1, 1, 0, 1, 1, 4),
        (256, 256, 3, 1, 1, 1, 1, 4),
    ]


def _patch() -> list[Layer]:
    return [(3, w, p, p, 0, 1, 1, 1) for w in (192, 384, 768, 1024, 1280) for p in (8, 14, 16, 32)] + [
        (4, 1152, 2, 2, 0, 1, 1, 8),
        (16, 1920, 2, 2, 0, 1, 1, 8),
        (768, 768, 4, 4, 0, 1, 1, 16),
        (320, 320, 2, 2, 0, 1, 1, 16),
    ]


FAMILIES_2D: dict[str, tuple[list[Layer], tuple[int, ...]]] = {
    "resnet": (_resnet(), (64, 128, 160, 192, 224, 256, 320, 384, 512)),
    "resnext": (_resnext(), (128, 224, 256, 384)),
    "efficientnet": (_efficientnet(), (128, 224, 240, 300, 380)),
    "convnext": (_convnext(), (128, 224, 288, 384)),
    "vgg": (_vgg(), (32, 64, 128, 224, 256)),
    "inception": (_inception(), (64, 128, 224, 299)),
    "ddpm": (_unet((64, 128, 256, 512), 3) + _unet((128, 128, 256, 256, 512, 512), 3), (32, 64, 128, 256)),
    "sd-unet": (_unet((320, 640, 1280, 1280), 4), (32, 48, 64, 96, 128)),
    "vae": (_unet((128, 256, 512, 512), 3) + [(512, 8, 3, 1, 1, 1, 1, 8)], (64, 128, 256, 512)),
    "unet": (_unet((64, 128, 256, 512, 1024), 1), (96, 128, 256, 512, 572)),
    "deeplab": (_deeplab(), (224, 321, 384, 512, 513)),
    "patch": (_patch(), (224, 256, 384, 448, 512)),
    "dcgan-d": ([(3, 64, 4, 2, 1, 1, 1, 1)] + [(64 * 2**i, 128 * 2**i, 4, 2, 1, 1, 1, 2 ** (i + 1)) for i in range(3)],
                (64, 128, 256)),
}  # fmt: skip

WAV2VEC: list[tuple[int, int, int, int, int, int]] = [  # cin, cout, kernel, stride, groups, downscale
    (1, 512, 10, 5, 1, 1),
    (512, 512, 3, 2, 1, 5),
    (512, 512, 3, 2, 1, 20),
    (512, 512, 2, 2, 1, 80),
    (768, 768, 128, 1, 16, 320),
    (80, 512, 3, 1, 1, 160),
    (512, 512, 3, 2, 1, 160),
    (80, 384, 3, 1, 1, 160),
    (384, 384, 3, 2, 1, 160),
    (256, 256, 31, 1, 256, 640),
    (256, 512, 1, 1, 1, 640),
    (64, 64, 7, 1, 1, 32),
    (1, 16, 7, 1, 1, 4),
    (32, 64, 5, 2, 1, 16),
]
CONV3D: list[tuple[int, int, tuple[int, int, int], tuple[int, int, int], tuple[int, int, int], int]] = [
    (3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), 1),
    (64, 64, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (64, 128, (3, 3, 3), (2, 2, 2), (1, 1, 1), 1),
    (128, 128, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (256, 256, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (512, 512, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (128, 256, (1, 1, 1), (2, 2, 2), (0, 0, 0), 1),
    (64, 144, (1, 3, 3), (1, 1, 1), (0, 1, 1), 1),
    (144, 64, (3, 1, 1), (1, 1, 1), (1, 0, 0), 1),
    (27, 120, (1, 3, 3), (1, 1, 1), (0, 1, 1), 1),
    (120, 120, (1, 1, 1), (1, 1, 1), (0, 0, 0), 1),
    (3, 768, (2, 16, 16), (2, 16, 16), (0, 0, 0), 1),
    (3, 96, (2, 4, 4), (2, 4, 4), (0, 0, 0), 1),
    (16, 32, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (1, 32, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (32, 32, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (54, 54, (3, 5, 5), (1, 1, 1), (1, 2, 2), 54),
    (96, 96, (3, 3, 3), (1, 1, 1), (1, 1, 1), 1),
    (512, 512, (3, 3, 3), (1, 1, 1), (0, 1, 1), 1),
]
TRANSPOSED: list[tuple[int, int, int, int, int, int, int]] = [  # cin, cout, kernel, stride, pad, outpad, downscale
    (100, 512, 4, 1, 0, 0, 4096),
    (512, 256, 4, 2, 1, 0, 16),
    (256, 128, 4, 2, 1, 0, 8),
    (128, 64, 4, 2, 1, 0, 4),
    (64, 3, 4, 2, 1, 0, 2),
    (1024, 512, 2, 2, 0, 0, 16),
    (512, 256, 2, 2, 0, 0, 8),
    (128, 64, 2, 2, 0, 0, 2),
    (256, 128, 3, 2, 1, 1, 8),
    (64, 32, 3, 2, 1, 1, 2),
    (256, 256, 2, 2, 0, 0, 16),
]


def _tuple(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else value


def _batch(rng: random.Random) -> int:
    if rng.random() < 0.7:
        return rng.choice((1, 2, 4, 8, 16, 32, 64, 128))
    return max(1, round(2 ** rng.uniform(0, 7)))


def _from_family(rng: random.Random) -> Conv:
    kind = rng.random()
    if kind < 0.72:
        name = rng.choice(list(FAMILIES_2D))
        layers, resolutions = FAMILIES_2D[name]
        cin, cout, kernel, stride, padding, dilation, groups, scale = rng.choice(layers)
        height = rng.choice(resolutions)
        width = height if rng.random() < 0.85 else rng.choice(resolutions)
        size = tuple(max(1, math.ceil(extent / scale)) for extent in (height, width))
        return Conv(name, _batch(rng), cin, cout, size, _tuple(kernel, 2), (stride,) * 2, _tuple(padding, 2),
                    (dilation,) * 2, groups)  # fmt: skip
    if kind < 0.82:
        cin, cout, kernel1, stride, groups, scale = rng.choice(WAV2VEC)
        length = max(kernel1, round(16000 * rng.uniform(0.5, 15) / scale))
        padding1 = rng.choice((0, kernel1 // 2))
        return Conv("audio-1d", _batch(rng), cin, cout, (length,), (kernel1,), (stride,), (padding1,), (1,), groups)
    if kind < 0.92:
        cin, cout, kernel3, stride3, padding3, groups = rng.choice(CONV3D)
        side = rng.choice((7, 14, 16, 28, 32, 56, 64, 96, 112, 128))
        depth = rng.choice((2, 4, 5, 6, 8, 13, 16, 17, 32, 64))
        size = (max(depth, kernel3[0]), max(side, kernel3[1]), max(side, kernel3[2]))
        return Conv("conv-3d", min(16, _batch(rng)), cin, cout, size, kernel3, stride3, padding3, (1,) * 3, groups)
    cin, cout, kernel4, stride, padding4, outpad, scale = rng.choice(TRANSPOSED)
    side = max(1, rng.choice((64, 128, 256, 512)) // scale)
    return Conv("transposed", _batch(rng), cin, cout, (side, side), (kernel4,) * 2, (stride,) * 2, (padding4,) * 2,
                (1,) * 2, 1, True, (outpad,) * 2)  # fmt: skip


def _channels(rng: random.Random) -> int:
    if rng.random() < 0.25:
        return rng.choice((1, 2, 3, 4, 5, 6, 7, 9, 12, 15, 17, 20, 21, 27, 30, 37, 54, 60, 75, 91, 100, 180, 225, 255))
    if rng.random() < 0.5:
        return rng.choice((8, 16, 32, 64, 128, 256, 512, 1024, 2048))
    return 8 * max(1, round(2 ** rng.uniform(0, 8)))


def _random(rng: random.Random) -> Conv:
    dims = rng.choices((1, 2, 3), (0.15, 0.65, 0.2))[0]
    cin, cout = _channels(rng), _channels(rng)
    groups = 1
    draw = rng.random()
    if draw < 0.1:
        groups, cout = cin, cin * rng.choice((1, 1, 1, 2))
    elif draw < 0.2:
        groups = rng.choice((2, 4, 8, 16, 32))
        cin, cout = groups * max(1, cin // groups), groups * max(1, cout // groups)
    widest = {1: 31, 2: 16, 3: 5}[dims]
    options = [k for k in (1, 1, 2, 3, 3, 3, 3, 4, 5, 7, 9, 11, 13, 16, 31) if k <= widest]
    kernel = (rng.choice(options),) * dims
    if rng.random() < 0.1:
        kernel = tuple(rng.choice(options) for _ in range(dims))
    stride = (rng.choices((1, 2, 3, 4), (0.7, 0.22, 0.04, 0.04))[0],) * dims
    dilation = (rng.choices((1, 2, 3, 4, 8), (0.88, 0.05, 0.02, 0.03, 0.02))[0],) * dims
    same = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
    padding = same if rng.random() < 0.8 else (0,) * dims
    largest = {1: 15, 2: 9, 3: 6.5}[dims]
    size = tuple(round(2 ** rng.uniform(2, largest)) for _ in range(dims))
    if rng.random() < 0.6:
        size = (size[0],) * dims
    size = tuple(max(s, d * (k - 1) + 1 - 2 * p) for s, d, k, p in zip(size, dilation, kernel, padding, strict=True))
    transposed = rng.random() < 0.1
    if transposed:
        padding = tuple(min(p, (k - 1) // 2) for p, k in zip(padding, kernel, strict=True))
    return Conv("random", _batch(rng), cin, cout, size, kernel, stride, padding, dilation, groups, transposed,
                (0,) * dims)  # fmt: skip


def draw(rng: random.Random, limit_bytes: int = LIMIT_BYTES, flop_limits: dict[str, float] | None = FLOP_LIMIT) -> Conv:
    """One configuration; the batch is halved until tensors and arithmetic stay within limits."""
    conv = _from_family(rng) if rng.random() < 0.62 else _random(rng)
    if not conv.output_padding:
        conv = replace(conv, output_padding=(0,) * len(conv.size))
    dtype, tf32 = rng.choices((("f32", True), ("f32", False), ("f16", True), ("bf16", True)), (0.36, 0.1, 0.18, 0.36))[
        0
    ]
    layout = "nchw"
    if len(conv.size) > 1:
        layout = rng.choices(("nchw", "nhwc", "x", "w"), (0.6, 0.32, 0.04, 0.04))[0]
    conv = replace(conv, dtype=dtype, tf32=tf32, layout=layout, bias=rng.random() < 0.5, benchmark=rng.random() < 0.08)
    limit = flop_limits["f32x" if dtype == "f32" and not tf32 else dtype] if flop_limits else math.inf
    if conv.groups > 1:
        limit /= 10 if conv.groups < conv.channels_in else 40
    if conv.benchmark:
        limit /= 4
    while conv.batch > 1 and (conv.tensor_bytes > limit_bytes or conv.flops > limit):
        conv = replace(conv, batch=conv.batch // 2)
    while conv.tensor_bytes > limit_bytes or conv.flops > 2 * limit:
        size = tuple(
            max(s // 2, d * (k - 1) + 1) for s, k, d in zip(conv.size, conv.kernel, conv.dilation, strict=True)
        )
        if size == conv.size:
            break
        conv = replace(conv, size=size)
    return conv


HEADER = (
    "id,family,dims,batch,cin,cout,size,kernel,stride,padding,dilation,groups,transposed,outpad,dtype,tf32,layout,"
    "bias,benchmark,backend,fwd,fwd_peak,dgrad,dgrad_peak,wgrad,wgrad_peak,both,both_peak,again,ms,error"
)


def _join(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    memory_format = torch.contiguous_format
    if channels_last:
        memory_format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.empty(shape, dtype=dtype, device="cuda", memory_format=memory_format)


def measure(index: int, conv: Conv) -> str:
    """One CSV row: forward, the two backwards apart, both with the bias gradient, and (benchmark) all again."""
    started = time.perf_counter()
    torch.backends.cudnn.allow_tf32 = conv.tf32
    torch.backends.cudnn.benchmark = conv.benchmark
    dtype = DTYPES[conv.dtype]
    x = _allocate((conv.batch, conv.channels_in, *conv.size), dtype, conv.layout in ("nhwc", "x"))
    w = _allocate(conv.weight_shape, dtype, conv.layout in ("nhwc", "w"))
    b = torch.empty(conv.channels_out, dtype=dtype, device="cuda") if conv.bias else None
    geometry = (list(conv.stride), list(conv.padding), list(conv.dilation), conv.transposed,
                list(conv.output_padding), conv.groups)  # fmt: skip
    try:
        chosen = torch._C._select_conv_backend(x, w, b, *geometry)
        backend = str(chosen).rsplit(".", 1)[-1].removeprefix("_ConvBackend.")
    except (RuntimeError, TypeError) as failure:
        backend = "? " + str(failure).splitlines()[0][:60]

    def forward() -> torch.Tensor:
        return torch.ops.aten.convolution(x, w, b, *geometry)

    first = record(forward)
    none = Recorded(None, "", 0, "")
    parts = {"fwd": first, "dgrad": none, "wgrad": none, "both": none}
    again = ""
    error = first.error
    if not error:
        grad = torch.empty_like(first.result)
        bias_sizes = [conv.channels_out] if conv.bias else None

        def backward(mask: list[bool]) -> object:
            return torch.ops.aten.convolution_backward(grad, x, w, bias_sizes, *geometry, mask)

        masks = {"dgrad": [True, False, False], "wgrad": [False, True, False], "both": [True, True, conv.bias]}
        for name, mask in masks.items():
            parts[name] = record(lambda mask=mask: backward(mask))
            error = error or (parts[name].error and f"{name}: {parts[name].error}")
            parts[name] = replace(parts[name], result=None)
        if conv.benchmark:
            repeats = [record(forward).history]
            repeats += [record(lambda mask=mask: backward(mask)).history for mask in list(masks.values())[:2]]
            again = "|".join(repeats)
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - started) * 1e3
    fields = [
        index, conv.family, len(conv.size), conv.batch, conv.channels_in, conv.channels_out, _join(conv.size),
        _join(conv.kernel), _join(conv.stride), _join(conv.padding), _join(conv.dilation), conv.groups,
        int(conv.transposed), _join(conv.output_padding), conv.dtype, int(conv.tf32), conv.layout, int(conv.bias),
        int(conv.benchmark), backend,
    ]  # fmt: skip
    for part in parts.values():
        fields += [part.history, part.peak_bytes]
    fields += [again, f"{milliseconds:.1f}", error.replace(",", ";").replace("\n", " ")]
    return ",".join(map(str, fields))
