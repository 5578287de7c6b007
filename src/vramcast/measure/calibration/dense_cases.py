"""Matrix products, convolutions and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from vramcast.measure.calibration.draws import Case, Draw, tensor, through

_CHANNELS = (3, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280)
_IMAGES = (4, 7, 8, 14, 16, 24, 28, 32, 48, 56, 64, 96, 112, 128, 192, 224)
_MOST_FLOPS = 4e12


def products(largest: int, count: int) -> Iterator[Case]:
    """Forward, and the two products of the backward pass: all three layouts."""
    draw = Draw("products", largest)
    while count > 0:
        dtype = torch.float32 if draw.chance(0.35) else draw.half()
        step = draw.of((1, 2, 4)) if draw.chance(0.2) else 8
        low = 8 if draw.chance(0.15) else 64
        rows, inner, outer = draw.size(2 * low, 40000, step), draw.size(low, 8192, step), draw.size(low, 8192, step)
        if draw.chance(0.04):
            outer = draw.size(30000, 60000, step)
        flops = 6.0 * rows * inner * outer
        if flops > (_MOST_FLOPS if dtype != torch.float32 else _MOST_FLOPS / 6) or not draw.fits(
            rows * max(inner, outer)
        ):
            continue
        count -= 1
        bias = draw.chance(0.5)
        yield Case(f"linear {rows}x{inner}x{outer} {dtype}", _linear(rows, inner, outer, dtype, bias))


def _linear(rows: int, inner: int, outer: int, dtype: torch.dtype, bias: bool) -> Any:
    def run() -> None:
        x, weight = tensor(rows, inner, dtype=dtype, grad=True), tensor(outer, inner, dtype=dtype, grad=True)
        through(functional.linear(x, weight, tensor(outer, dtype=dtype) if bias else None))

    return run


def batched_products(largest: int, count: int) -> Iterator[Case]:
    draw = Draw("batched products", largest)
    while count > 0:
        dtype = draw.dtype()
        step = draw.of((1, 4)) if draw.chance(0.3) else 8
        rows, columns = draw.size(32, 1024, step), draw.size(32, 1024, step)
        depth = draw.of((16, 32, 64, 64, 80, 128)) if draw.chance(0.7) else draw.size(16, 256, step)
        batch = draw.batch(rows * columns, 18, 26)
        if not draw.fits(batch * max(rows * columns, rows * depth)) or 6.0 * batch * rows * columns * depth > 4e11:
            continue
        count -= 1
        yield Case(f"bmm {batch}x{rows}x{depth}x{columns} {dtype}", _batched(batch, rows, depth, columns, dtype))


def _batched(batch: int, rows: int, depth: int, columns: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        left = tensor(batch, rows, depth, dtype=dtype, grad=True)
        right = tensor(batch, columns, depth, dtype=dtype, grad=True)
        through(torch.bmm(left, right.transpose(1, 2)))

    return run


def convolutions(largest: int, count: int) -> Iterator[Case]:
    """The gradients of the data and of the weight are asked for apart, so that each is timed alone."""
    draw = Draw("convolutions", largest)
    while count > 0:
        dtype = torch.float32 if draw.chance(0.5) else draw.half()
        image = draw.of(_IMAGES)
        # Channels grow where images shrink, as they do along a network.
        usual = [count for count in _CHANNELS if 512 <= count * image <= 24000] or list(_CHANNELS)
        c_in, c_out = draw.of(usual), draw.of(usual)
        if draw.chance(0.08):
            c_in = 3
        window = draw.of((1, 1, 3, 3, 3, 5, 7))
        stride = 2 if draw.chance(0.2) else 1
        batch = min(draw.batch(max(c_in, c_out) * image**2), 256)
        groups, last = 1, draw.chance(0.35)
        kind = draw.of(("plain", "plain", "plain", "plain", "depthwise", "grouped"))
        if kind == "depthwise":
            c_in = c_out = groups = max(c_in, 16)
            window = draw.of((3, 3, 5, 7))
        elif kind == "grouped":
            width = draw.of((4, 8, 16, 32, 64, 168))
            groups = draw.of((2, 4, 8, 16, 32))
            c_in = c_out = width * groups
        elif draw.chance(0.3):
            c_out = c_in
        flops = 2.0 * batch * (image // stride) ** 2 * c_out * c_in // groups * window**2
        if image < window or flops > 6e11 or not draw.fits(batch * image**2 * max(c_in, c_out)):
            continue
        count -= 1
        wanted = draw.of(("data", "weight", "both"))
        name = f"conv {wanted} {batch}x{c_in}x{image} to {c_out}, window {window}/{stride}, {groups} groups, {dtype}"
        yield Case(
            name,
            _convolution(
                (batch, c_in, image, image),
                (c_out, c_in // groups, window, window),
                stride,
                groups,
                dtype,
                last,
                wanted,
            ),
        )


def other_convolutions(largest: int, count: int) -> Iterator[Case]:
    """Of signals and of volumes."""
    draw = Draw("other convolutions", largest)
    while count > 0:
        dtype = draw.dtype()
        dims = draw.of((1, 3))
        c_in, c_out = draw.of(_CHANNELS[1:]), draw.of(_CHANNELS[1:])
        window, batch = draw.of((1, 3)), draw.size(1, 16, 1)
        image = (draw.size(100, 8000, 4),) if dims == 1 else (draw.size(4, 16, 1), *[draw.size(16, 64, 4)] * 2)
        places = image[0] if dims == 1 else image[0] * image[1] * image[2]
        if 2.0 * batch * places * c_in * c_out * window**dims > 4e11 or not draw.fits(
            batch * places * max(c_in, c_out)
        ):
            continue
        count -= 1
        shape, weight = (batch, c_in, *image), (c_out, c_in, *[window] * dims)
        yield Case(
            f"conv{dims}d {shape} {weight} {dtype}",
            _convolution(shape, weight, 1, 1, dtype, False, draw.of(("data", "weight", "both"))),
        )


def _convolution(
    shape: tuple[int, ...],
    weight_shape: tuple[int, ...],
    stride: int,
    groups: int,
    dtype: torch.dtype,
    last: bool,
    wanted: str,
) -> Any:
    def run() -> None:
        x, weight = tensor(*shape, dtype=dtype), tensor(*weight_shape, dtype=dtype)
        if last and len(shape) == 4:
            x, weight = x.to(memory_format=torch.channels_last), weight.to(memory_format=torch.channels_last)
        x.requires_grad_(wanted != "weight")
        weight.requires_grad_(wanted != "data")
        convolve: Any = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[len(shape)]
        y = convolve(x, weight, None, stride, weight_shape[-1] // 2, 1, groups)
        through(y)

    return run


def attentions(largest: int, count: int) -> Iterator[Case]:
    draw = Draw("attention", largest)
    while count > 0:
        dtype = torch.float32 if draw.chance(0.3) else draw.half()
        rows, depth = draw.size(32, 4096, 1), draw.of((32, 40, 64, 64, 64, 80, 96, 128, 128))
        heads = draw.of((1, 4, 6, 8, 12, 16, 20, 32))
        batch = min(draw.batch(heads * rows * depth, 18, 25), 256)
        columns = draw.size(32, 4096, 1) if draw.chance(0.3) else rows
        causal = rows == columns and draw.chance(0.4)
        masked = not causal and draw.chance(0.2)
        dropout = 0.1 if draw.chance(0.2) else 0.0
        flops = 14.0 * batch * heads * rows * columns * depth
        if flops > (1e12 if dtype != torch.float32 else 2e11) or not draw.fits(
            batch * heads * max(rows, columns) * depth
        ):
            continue
        if masked and not draw.fits(batch * rows * columns, 16):
            continue
        count -= 1
        name = f"attention {batch}x{heads}x{rows}x{columns}x{depth} {dtype} {'causal' if causal else ''}"
        backend = draw.of(("any", "any", "efficient", "flash"))
        yield Case(name, _attention(batch, heads, rows, columns, depth, dtype, causal, masked, dropout, backend))


def _attention(
    batch: int, heads: int, rows: int, columns: int, depth: int, dtype: torch.dtype, causal: bool, masked: bool,
    dropout: float, backend: str,
) -> Any:  # fmt: skip
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {
        "any": [
            SDPBackend.CUDNN_ATTENTION,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
            SDPBackend.MATH,
        ],
        "efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
        "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    }[backend]

    def run() -> None:
        query, keys, values = (
            tensor(batch, length, heads, depth, dtype=dtype, grad=True).transpose(1, 2)
            for length in (rows, columns, columns)
        )
        mask = tensor(batch, 1, rows, columns, dtype=dtype) if masked else None
        with sdpa_kernel(backends, set_priority=backend == "any"):
            y = functional.scaled_dot_product_attention(query, keys, values, mask, dropout, causal)
        through(y)

    return run
