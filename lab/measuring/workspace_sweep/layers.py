"""Convolutions such as networks have them: round channel counts, common image sizes, any batch."""

from __future__ import annotations

import math
import random

from lab.measuring.workspace_sweep.convolutions import Conv

CHANNELS = (
    3, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 176, 192, 208, 224, 240, 256, 272, 288, 304,
    320, 336, 352, 384, 416, 448, 480, 512, 528, 544, 576, 608, 640, 672, 704, 720, 736, 768, 800, 816, 832, 896, 960,
    1024, 1088, 1152, 1280, 1344, 1392, 1440, 1536, 1728, 1792, 1920, 2048, 2304, 2560, 3072, 4096,
)  # fmt: skip
SIZES = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20, 24, 25, 26, 28, 30, 32, 36, 38, 40, 44, 48, 50, 52, 56,
    60, 64, 68, 72, 75, 76, 80, 84, 88, 92, 96, 100, 104, 112, 120, 128, 136, 144, 150, 152, 160, 168, 176, 184, 192, 200,
    208, 216, 224, 240, 256, 272, 288, 299, 300, 304, 320, 336, 352, 384, 400, 416, 448, 480, 512, 576, 600, 640, 768, 800, 1024,
)  # fmt: skip
LIMIT_BYTES_LOG2 = (22.0, 34.0)  # drawn for each layer, so that small and large ones are equally common
LIMIT_ELEMENTS = 2**31 - 1  # PyTorch splits larger tensors


def _channels(rng: random.Random) -> int:
    draw = rng.random()
    if draw < 0.55:
        return rng.choice(CHANNELS)
    if draw < 0.75:
        return 32 * rng.randint(1, 40)
    if draw < 0.9:
        return 8 * rng.randint(1, 128)
    return rng.randint(1, 512)


def _partner(rng: random.Random, channels: int) -> int:
    draw = rng.random()
    if draw < 0.35:
        return channels
    if draw < 0.65:
        return max(1, round(channels * rng.choice((0.25, 0.5, 0.5, 2, 2, 4, 6, 1 / 6, 3))))
    return _channels(rng)


def _batch(rng: random.Random) -> int:
    draw = rng.random()
    if draw < 0.4:
        return 2 ** rng.randint(0, 8)
    if draw < 0.75:
        return rng.randint(1, 64)
    return round(2 ** rng.uniform(0, 8.3))


def _kernel(rng: random.Random, dims: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, stride, padding."""
    draw = rng.random()
    if draw < 0.36:
        stride = rng.choices((1, 2), (0.88, 0.12))[0]
        return (1,) * dims, (stride,) * dims, (0,) * dims
    if draw < 0.76:
        stride = rng.choices((1, 2), (0.82, 0.18))[0]
        return (3,) * dims, (stride,) * dims, (rng.choices((1, 0), (0.93, 0.07))[0],) * dims
    if draw < 0.82:
        kernel = rng.choice((2, 4, 4, 6) if dims < 3 else (2, 4))
        return (kernel,) * dims, (2,) * dims, (rng.choice((kernel // 2 - 1, 0)),) * dims
    if draw < 0.87:
        patch = rng.choice((2, 4, 7, 8, 14, 16, 32) if dims < 3 else (2, 4))
        return (patch,) * dims, (patch,) * dims, (0,) * dims
    if draw < 0.92 and dims > 1:
        options = (
            [(1, 3), (3, 1), (1, 7), (7, 1), (1, 5)]
            if dims == 2
            else [(1, 3, 3), (3, 1, 1), (3, 7, 7), (5, 1, 1), (2, 16, 16)]
        )
        asymmetric: tuple[int, ...] = rng.choice(options)
        if asymmetric == (2, 16, 16):
            return asymmetric, asymmetric, (0, 0, 0)
        return asymmetric, (1,) * dims, tuple(k // 2 for k in asymmetric)
    kernel = rng.choice((5, 5, 7, 7, 9, 11, 15) if dims == 2 else (5, 7, 9, 15, 31) if dims == 1 else (5, 7))
    stride = rng.choices((1, 2, 4), (0.7, 0.25, 0.05))[0]
    return (kernel,) * dims, (stride,) * dims, (kernel // 2,) * dims


def draw(rng: random.Random) -> Conv:
    """One layer; a draw that is too large gets a smaller batch, then a smaller image."""
    dims = rng.choices((1, 2, 3), (0.06, 0.8, 0.14))[0]
    cin = _channels(rng)
    cout = _partner(rng, cin)
    kernel, stride, padding = _kernel(rng, dims)
    dilation = (1,) * dims
    if max(kernel) == 3 and rng.random() < 0.05:
        dilation = (rng.choice((2, 2, 3, 4, 6, 12)),) * dims
        padding = dilation
    groups = 1
    grouping = rng.random()
    if grouping < 0.07:
        groups, cout = cin, cin
    elif grouping < 0.16:
        width = rng.choice((4, 8, 16, 24, 32, 40, 48, 56, 64, 112, 128))
        groups = rng.choice((2, 4, 8, 16, 32))
        cin = cout = width * groups
    if dims == 1:
        size: tuple[int, ...] = (rng.choice((rng.choice(SIZES), rng.randint(1, 4000), rng.randint(1, 60000))),)
    elif dims == 2:
        size = (rng.choice(SIZES),) * 2 if rng.random() < 0.78 else (rng.choice(SIZES), rng.choice(SIZES))
    else:
        side = rng.choice([s for s in SIZES if s <= 256])
        size = (rng.choice((1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 16, 17, 20, 24, 32, 40, 48, 64, 80, 96, 128)), side, side)
    size = tuple(max(s, d * (k - 1) + 1 - 2 * p) for s, d, k, p in zip(size, dilation, kernel, padding, strict=True))
    dtype, tf32 = rng.choices((("f32", True), ("f32", False), ("f16", True), ("bf16", True)), (0.4, 0.04, 0.22, 0.34))[
        0
    ]
    layout = rng.choices(("nchw", "nhwc"), (0.62, 0.38))[0] if dims > 1 else "nchw"
    transposed = rng.random() < 0.04
    batch = _batch(rng)
    limit_bytes = 2 ** rng.uniform(*LIMIT_BYTES_LOG2)
    while True:
        conv = Conv("layers", batch, cin, cout, size, kernel, stride, padding, dilation, groups, transposed,
                    (0,) * dims, dtype, tf32, layout, False, False)  # fmt: skip
        if min(conv.out_size) < 1:
            return draw(rng)
        elements = batch * max(cin * math.prod(size), cout * math.prod(conv.out_size))
        if conv.tensor_bytes <= limit_bytes and elements <= LIMIT_ELEMENTS:
            return conv
        smaller = tuple(max(s // 2, d * (k - 1) + 1) for s, k, d in zip(size, kernel, dilation, strict=True))
        if batch > 1 and (smaller == size or rng.random() < 0.3):
            batch = rng.randint(max(1, batch // 3), batch - 1)
        elif smaller != size:
            size = smaller
        elif elements <= LIMIT_ELEMENTS:
            return conv
