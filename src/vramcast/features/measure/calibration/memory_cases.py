"""What memory bounds: elementwise operators, copies, reductions, normalisation, lists, indices, images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from vramcast.features.measure.calibration.draws import Case, Draw, tensor, through

_CHANNELS = (16, 24, 32, 40, 64, 96, 128, 192, 256, 384, 512, 672, 1024, 1344, 2048)
_WIDTHS = (32, 64, 77, 128, 196, 256, 320, 512, 768, 1024, 1280, 2048, 3072, 4096)


def elementwise(draw: Draw, count: int) -> Iterator[Case]:
    unary: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        functional.gelu, functional.silu, functional.relu, torch.tanh, torch.sigmoid, torch.exp, torch.sqrt, torch.neg,
        torch.rsqrt, functional.hardswish, functional.leaky_relu, torch.sin, torch.cos, torch.log,
    )  # fmt: skip
    for _ in range(count):
        elements, width, dtype = draw.size(1 << 13, 1 << 28), draw.of(_WIDTHS), draw.dtype()
        rows = max(elements // width, 1)
        if not draw.fits(elements):
            continue
        function, other = draw.of(unary), draw.of(("same", "row", "column", "turned", "number", "mixed", "sliced"))
        yield Case(
            f"{function.__name__} and {other} {rows}x{width} {dtype}", _elementwise(rows, width, dtype, function, other)
        )


def _elementwise(rows: int, width: int, dtype: torch.dtype, function: Any, other: str) -> Any:
    def run() -> None:
        x = tensor(rows, width, dtype=dtype, grad=True)
        y = function(x)
        if other == "number":
            y = y * 2.0
        elif other == "sliced":
            y = y[:, : max(width // 2, 1)] + 1.0
        else:
            shapes = {"row": (1, width), "column": (rows, 1), "turned": (width, rows)}
            second = tensor(*shapes.get(other, (rows, width)), dtype=torch.float32 if other == "mixed" else dtype)
            y = y + (second.t() if other == "turned" else second)
        through(y)

    return run


def copies(draw: Draw, count: int) -> Iterator[Case]:
    """Casts, layouts, joins, pieces and fills."""
    for _ in range(count):
        heads, length, depth = draw.of((4, 8, 12, 16, 32)), draw.size(16, 2048, 1), draw.of((32, 64, 80, 128))
        batch = draw.batch(heads * length * depth, 16, 27)
        if draw.fits(batch * heads * length * depth):
            yield Case(f"copies {batch}x{length}x{heads}x{depth}", _copies(batch, heads, length, depth, draw.dtype()))


def _copies(batch: int, heads: int, length: int, depth: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        x = tensor(batch, length, heads, depth, dtype=dtype)
        turned = x.transpose(1, 2)
        turned.contiguous()
        x.permute(0, 2, 3, 1).contiguous()
        x.clone()
        x.float() if dtype != torch.float32 else x.bfloat16()
        torch.cat([turned[..., : depth // 2], turned[..., depth // 2 :]], dim=-1)
        torch.cat([x, x], dim=1)
        torch.stack([turned, turned])
        functional.pad(x, (0, 0, 0, 0, 1, 2))
        part = x.detach().requires_grad_()[..., : depth // 2]
        through(part)
        torch.zeros_like(x)
        functional.dropout(x, 0.1)

    return run


def reductions(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        width, dtype = draw.size(16, 8192, 1), draw.dtype()
        rows = draw.batch(width, 14, 27)
        if draw.fits(rows * width, 8):
            yield Case(f"reductions {rows}x{width} {dtype}", _reductions(rows, width, dtype))


def _reductions(rows: int, width: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        x = tensor(rows, width, dtype=dtype)
        x.sum(0)
        x.sum(1)
        x.mean(-1, keepdim=True)
        x.sum()
        torch.linalg.vector_norm(x)
        x.amax(-1)

    return run


def softmaxes(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        width = draw.of((16, 49, 64, 128, 196, 256, 512, 900, 1024, 2048, 8192, 32000, 50257))
        rows, dtype = draw.batch(width, 16, 27), draw.dtype()
        if draw.fits(rows * width, 12):
            yield Case(f"softmax {rows}x{width} {dtype}", _softmax(rows, width, dtype))


def _softmax(rows: int, width: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        x = tensor(rows, width, dtype=dtype, grad=True)
        through(torch.softmax(x, -1))
        targets = torch.randint(0, width, (rows,), device="cuda")
        functional.cross_entropy(tensor(rows, width, grad=True), targets).backward()
        torch.ops.aten._safe_softmax(x.detach(), -1)

    return run


def norms(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        width, dtype = draw.of((96, 128, 192, 320, 384, 512, 768, 1024, 1280, 1536, 2048, 4096)), draw.dtype()
        rows = draw.batch(width, 16, 26)
        yield Case(f"layer norm {rows}x{width} {dtype}", _rows(rows, width, dtype))


def image_norms(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        image, dtype, last = draw.of((4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224)), draw.dtype(), draw.chance(0.3)
        channels = draw.of([size for size in _CHANNELS if 448 <= size * image <= 24000])
        batch = min(draw.batch(channels * image**2, 16, 27), 256)
        if draw.fits(batch * channels * image**2, 8):
            name = f"image norms {batch}x{channels}x{image} {dtype}"
            yield Case(name, _channels(batch, channels, image, dtype, last))


def _rows(rows: int, width: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        x, weight, bias = (
            tensor(rows, width, dtype=dtype, grad=True),
            tensor(width, dtype=dtype, grad=True),
            tensor(width, dtype=dtype, grad=True),
        )
        through(functional.layer_norm(x, (width,), weight, bias))
        through(functional.rms_norm(x, (width,), weight))

    return run


def _channels(batch: int, channels: int, image: int, dtype: torch.dtype, last: bool) -> Any:
    def run() -> None:
        x = tensor(batch, channels, image, image, dtype=dtype)
        x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
        weight, bias = tensor(channels, grad=True), tensor(channels, grad=True)
        means, variances = torch.zeros(channels, device="cuda"), torch.ones(channels, device="cuda")
        through(functional.batch_norm(x, means, variances, weight, bias, training=True))
        with torch.backends.cudnn.flags(enabled=False):
            through(functional.batch_norm(x, means, variances, weight, bias, training=True))
        if channels % 32 == 0 and not last:
            through(functional.group_norm(x, 32, weight.to(dtype), bias.to(dtype)))

    return run


def lists(draw: Draw, count: int) -> Iterator[Case]:
    """Optimizers on many tensors at once."""
    for _ in range(count):
        sizes = [draw.size(64, 1 << draw.of((12, 18, 24)), 1) for _ in range(draw.size(4, 400, 1))]
        if draw.fits(sum(sizes), 24):
            yield Case(f"optimizers on {len(sizes)} tensors, {sum(sizes)} elements", _lists(sizes))


def _lists(sizes: list[int]) -> Any:
    def run() -> None:
        parameters = [tensor(size, grad=True) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        for options in ({"foreach": True}, {"fused": True}):
            torch.optim.AdamW(parameters, **options).step()  # type: ignore[arg-type]
        torch.optim.SGD(parameters, momentum=0.9, foreach=True).step()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    return run


def indices(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        rows, width, picked = (
            draw.size(32, 200000, 1),
            draw.of((12, 64, 128, 768, 1024, 2048)),
            draw.size(64, 100000, 1),
        )
        if draw.fits(max(rows, picked) * width, 8):
            yield Case(f"indices {picked} of {rows}x{width}", _indices(rows, width, picked))


def _indices(rows: int, width: int, picked: int) -> Any:
    def run() -> None:
        table = tensor(rows, width, grad=True)
        places = torch.randint(0, rows, (picked,), device="cuda")
        through(functional.embedding(places, table))
        through(table[places])
        columns = torch.randint(0, width, (rows, 8), device="cuda")
        table.detach().gather(1, columns)
        torch.zeros(rows, width, device="cuda").scatter_add_(1, columns, tensor(rows, 8))
        tensor(picked).sort()
        tensor(picked).cumsum(0)

    return run


def images(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        channels, image = draw.of((3, 32, 64, 128, 256, 512)), draw.of((8, 14, 16, 28, 32, 56, 64, 112))
        batch, dtype, last = min(draw.batch(channels * image**2, 16, 25), 256), draw.dtype(), draw.chance(0.3)
        if draw.fits(batch * channels * image**2 * 4, 6):
            yield Case(f"images {batch}x{channels}x{image} {dtype}", _images(batch, channels, image, dtype, last))


def _images(batch: int, channels: int, image: int, dtype: torch.dtype, last: bool) -> Any:
    def run() -> None:
        x = tensor(batch, channels, image, image, dtype=dtype)
        x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
        through(functional.max_pool2d(x, 3, 2, 1))
        through(functional.avg_pool2d(x, 2))
        through(functional.adaptive_avg_pool2d(x, 1))
        for mode in ("nearest", "bilinear"):
            through(functional.interpolate(x, scale_factor=2, mode=mode))

    return run


def sequences(draw: Draw, count: int) -> Iterator[Case]:
    """Recurrent networks and Fourier transforms."""
    for _ in range(count):
        batch, steps, width = draw.size(4, 128, 4), draw.size(16, 256, 1), draw.of((64, 128, 256, 512, 1024))
        layers, image = draw.of((1, 2)), draw.of((32, 64, 100, 128, 256))
        kind = torch.nn.LSTM if draw.chance(0.7) else torch.nn.GRU
        network = kind(width, width, layers, batch_first=True, bidirectional=draw.chance(0.4))
        name = f"{kind.__name__.lower()} {batch}x{steps}x{width}"
        yield Case(name, _sequences(network.to("cuda", draw.dtype()), batch, steps, image))


def _sequences(network: torch.nn.LSTM | torch.nn.GRU, batch: int, steps: int, image: int) -> Any:
    dtype = next(network.parameters()).dtype

    def run() -> None:
        through(network(tensor(batch, steps, network.input_size, dtype=dtype, grad=True))[0])
        x = tensor(batch, 8, image, image, grad=True)
        spectrum = torch.fft.rfft2(x)
        through(torch.fft.irfft2(spectrum, s=(image, image)))

    return run
