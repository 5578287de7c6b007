"""What networks put around their products and convolutions: gates, windows, losses, selections, samples, updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional

from vramcast.features.measure.calibration.draws import Case, Draw, tensor, through

_CHANNELS = (16, 24, 40, 48, 64, 80, 96, 112, 128, 192, 256, 320, 384, 512, 672, 768, 1024, 1344, 2048)
_IMAGES = (7, 8, 14, 16, 24, 28, 32, 56, 64, 112, 128)


def _image(draw: Draw, low: int = 17, high: int = 27) -> tuple[int, int, int]:
    """Images, channels, side."""
    side = draw.of(_IMAGES)
    channels = draw.of([size for size in _CHANNELS if 448 <= size * side <= 24000])
    return min(draw.batch(channels * side**2, low, high), 256), channels, side


def _laid_out(x: torch.Tensor, last: bool) -> torch.Tensor:
    return (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()


def image_layers(draw: Draw, count: int) -> Iterator[Case]:
    """Images scaled by channel, by image, joined, cut and turned to tokens."""
    for _ in range(count):
        batch, channels, side = _image(draw)
        dtype, last = draw.dtype(), draw.chance(0.45)
        if draw.fits(batch * channels * side**2, 16):
            name = f"gates {batch}x{channels}x{side} {dtype} {last}"
            yield Case(name, _image_layers(batch, channels, side, dtype, last, draw.of(range(4))))


def _image_layers(batch: int, channels: int, side: int, dtype: torch.dtype, last: bool, kind: int) -> Any:
    def run() -> None:
        x = _laid_out(tensor(batch, channels, side, side, dtype=dtype), last)
        if kind == 0:
            through(x * tensor(batch, channels, 1, 1, dtype=dtype, grad=True))
            through(x.mean((2, 3), keepdim=True))
        elif kind == 1:
            through(x * tensor(channels, 1, 1, grad=True))
            through(x.div(0.9) * tensor(batch, 1, 1, 1, dtype=dtype))
        elif kind == 2:
            through(torch.cat([x, x.detach()], 1))
            first, second = x.chunk(2, 1)
            through(first * second)
            x.detach() + x.detach()
        else:
            through(x.flatten(2).transpose(1, 2).contiguous())
            tokens = x.detach().permute(0, 2, 3, 1).requires_grad_()
            through(functional.layer_norm(tokens, (channels,), tensor(channels, dtype=dtype, grad=True)))
            tokens.detach().permute(0, 3, 1, 2).contiguous()

    return run


def activations(draw: Draw, count: int) -> Iterator[Case]:
    functions: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
        ("gelu-tanh", lambda x: functional.gelu(x, approximate="tanh")), ("gelu", functional.gelu),
        ("relu6", functional.relu6), ("hardsigmoid", functional.hardsigmoid), ("hardswish", functional.hardswish),
        ("mish", functional.mish), ("elu", functional.elu), ("softplus", functional.softplus), ("glu", functional.glu),
        ("silu", functional.silu), ("clamp", lambda x: x.clamp(-0.5, 0.5)), ("pow", lambda x: x.pow(2)),
        ("where", lambda x: torch.where(x > 0, x, x * 0.5)), ("masked", lambda x: x.masked_fill(x > 0, 0.0)),
        ("log-sigmoid", functional.logsigmoid), ("inplace", lambda x: functional.relu(x * 1.0, inplace=True)),
        ("leaky", lambda x: functional.leaky_relu(x, 0.2)), ("tril", lambda x: x.tril()), ("rsub", lambda x: 1.0 - x),
    )  # fmt: skip
    for _ in range(count):
        width, dtype = draw.of((64, 256, 768, 1024, 3072, 4096)), draw.dtype()
        rows = draw.batch(width, 16, 27)
        name, function = draw.of(functions)
        if draw.fits(rows * width, 12):
            yield Case(f"activation {name} {rows}x{width} {dtype}", _activation(rows, width, dtype, function))


def _activation(rows: int, width: int, dtype: torch.dtype, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def run() -> None:
        through(function(tensor(rows, width, dtype=dtype, grad=True)))

    return run


def norms(draw: Draw, count: int) -> Iterator[Case]:
    """In other numbers of groups and dimensions, and with FP32 weights beside half-precision inputs."""
    for _ in range(count):
        batch, channels, side = _image(draw, 17, 26)
        dtype, kind, groups = (
            draw.dtype(),
            draw.of(("group", "group", "tokens", "signal", "volume")),
            draw.of((1, 8, 32)),
        )
        groups = groups if channels % groups == 0 else 1
        name = f"{kind} norm {batch}x{channels}x{side} {groups} {dtype}"
        yield Case(name, _norms(batch, channels, side, dtype, kind, groups))


def _norms(batch: int, channels: int, side: int, dtype: torch.dtype, kind: str, groups: int) -> Any:
    def run() -> None:
        weight, bias = tensor(channels, grad=True), tensor(channels, grad=True)
        if kind == "group":
            x = tensor(batch, channels, side, side, dtype=dtype, grad=True)
            through(functional.group_norm(x, groups, weight.to(dtype), bias.to(dtype)))
            return
        shape = {"tokens": (), "signal": (side**2,), "volume": (4, side, max(side // 4, 1))}[kind]
        rows = batch * side**2 if kind == "tokens" else batch
        x = tensor(rows, channels, *shape, dtype=dtype, grad=True)
        through(functional.batch_norm(x, None, None, weight, bias, training=True))

    return run


def windows(draw: Draw, count: int) -> Iterator[Case]:
    """Images cut into windows and put together again, rolled, shuffled and padded."""
    for _ in range(count):
        channels, side, dtype = draw.of((48, 96, 128, 192, 384)), draw.of((14, 28, 56, 112)), draw.dtype()
        batch = min(draw.batch(channels * side**2, 18, 26), 128)
        yield Case(f"windows {batch}x{side}x{channels} {dtype}", _windows(batch, side, channels, dtype))


def _windows(batch: int, side: int, channels: int, dtype: torch.dtype) -> Any:
    cells = side // 7

    def run() -> None:
        x = tensor(batch, side, side, channels, dtype=dtype, grad=True)
        through(x.view(batch, cells, 7, cells, 7, channels).transpose(2, 3).contiguous())
        through(torch.roll(x, (3, 3), (1, 2)))
        through(functional.pad(x, (0, 0, 0, 3, 0, 3)))
        image = tensor(batch, channels, side, side, dtype=dtype, grad=True)
        through(functional.pixel_shuffle(image, 2))
        through(functional.pad(image, (1, 1, 1, 1), mode="reflect"))
        through(x[:, 0::2, 1::2, :])
        through(x[:, 0])
        through(functional.unfold(image[:, :48], 3, padding=1))

    return run


def losses(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        classes, side, batch = draw.of((2, 19, 21, 81, 150)), draw.of((64, 128, 224, 320)), draw.size(1, 24, 1)
        frames, letters = draw.size(100, 2000, 1), draw.of((29, 32, 128, 1000))
        if draw.fits(batch * classes * side**2, 16) and draw.fits(batch * frames * letters, 16):
            yield Case(f"losses {batch}x{classes}x{side}, {frames}", _losses(batch, classes, side, frames, letters))


def _losses(batch: int, classes: int, side: int, frames: int, letters: int) -> Any:
    length = max(frames // 8, 1)

    def run() -> None:
        scores, places = tensor(batch, classes, side, side, grad=True), (batch, side, side)
        functional.cross_entropy(scores, torch.randint(0, classes, places, device="cuda")).backward()
        wanted = tensor(batch, classes, side, side)
        functional.binary_cross_entropy_with_logits(scores, wanted.abs()).backward()
        functional.smooth_l1_loss(scores, wanted).backward()
        functional.mse_loss(scores, wanted).backward()
        spoken = tensor(frames, batch, letters, grad=True).log_softmax(-1)
        text = torch.randint(1, letters, (batch, length), device="cuda")
        heard, written = (torch.full((batch,), size, device="cuda") for size in (frames, length))
        functional.ctc_loss(spoken, text, heard, written).backward()

    return run


def selections(draw: Draw, count: int) -> Iterator[Case]:
    """Sorted, picked, counted and summed along rows."""
    for _ in range(count):
        rows, width = draw.size(1, 4096, 1), draw.size(64, 50000, 1)
        if draw.fits(rows * width, 64):
            yield Case(f"selections {rows}x{width}", _selections(rows, width, draw.dtype(), draw.of((1, 2, 20, 40))))


def _selections(rows: int, width: int, dtype: torch.dtype, most: int) -> Any:
    def run() -> None:
        x = tensor(rows, width, dtype=dtype)
        x.topk(most, -1)
        x.sort(-1)
        x.argmax(-1)
        x.max(-1)
        x.cumsum(-1)
        x.cumsum(0)
        (x > 0).nonzero()
        x[x > 0.5]
        y = tensor(rows, width, dtype=dtype, grad=True)
        through(y.index_select(0, torch.randint(0, rows, (max(rows // 2, 1),), device="cuda")))
        through(y.gather(1, torch.randint(0, width, (rows, 64), device="cuda")))
        torch.zeros_like(x).index_add_(0, torch.randint(0, rows, (rows,), device="cuda"), x)
        torch.cdist(x[:512, :64].float(), x[:512, :64].float())

    return run


def samples(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        channels, side = draw.of((3, 16, 64, 256)), draw.of((14, 28, 56, 112))
        batch, dtype = min(draw.batch(channels * side**2, 16, 25), 128), draw.dtype()
        yield Case(f"samples {batch}x{channels}x{side}", _samples(batch, channels, side, dtype))


def _samples(batch: int, channels: int, side: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        x = tensor(batch, channels, side, side, dtype=dtype, grad=True)
        grid = tensor(batch, side, side, 2, dtype=dtype, grad=True)
        through(functional.grid_sample(x, grid, align_corners=False))
        through(functional.interpolate(x, scale_factor=2, mode="bicubic"))
        through(functional.interpolate(x, size=(7, 7), mode="bilinear", antialias=True))
        through(functional.adaptive_avg_pool2d(x, 7))
        through(functional.adaptive_max_pool2d(x, 1))
        through(functional.max_pool2d(x, 2))

    return run


def volume_pools(draw: Draw, count: int) -> Iterator[Case]:
    for _ in range(count):
        channels, side, dtype = draw.of((16, 32, 64, 128)), draw.of((16, 28, 32, 56, 64)), draw.dtype()
        batch, depth = draw.size(1, 8, 1), draw.of((8, 16, 32))
        if draw.fits(batch * channels * depth * side**2, 16):
            yield Case(f"volumes {batch}x{channels}x{depth}x{side}", _volumes(batch, channels, depth, side, dtype))


def _volumes(batch: int, channels: int, depth: int, side: int, dtype: torch.dtype) -> Any:
    def run() -> None:
        x = tensor(batch, channels, depth, side, side, dtype=dtype, grad=True)
        through(functional.max_pool3d(x, 2))
        through(functional.avg_pool3d(x, 2))
        through(functional.interpolate(x[:, :16], scale_factor=2, mode="trilinear"))
        signal = tensor(batch, channels, depth * side**2, dtype=dtype, grad=True)
        through(functional.max_pool1d(signal, 2))

    return run


def updates(draw: Draw, count: int) -> Iterator[Case]:
    """Optimizers beside AdamW and SGD, and parameters in half precision."""
    for _ in range(count):
        sizes = [draw.size(64, 1 << draw.of((12, 18, 24)), 1) for _ in range(draw.size(4, 300, 1))]
        dtype = torch.bfloat16 if draw.chance(0.4) else torch.float32
        if draw.fits(sum(sizes), 24):
            yield Case(f"updates of {len(sizes)} tensors, {sum(sizes)} elements {dtype}", _updates(sizes, dtype))


def _updates(sizes: list[int], dtype: torch.dtype) -> Any:
    def run() -> None:
        parameters: list[torch.Tensor] = [tensor(size, dtype=dtype, grad=True) for size in sizes]
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        torch.optim.Adam(parameters, weight_decay=0.01, foreach=True).step()
        torch.optim.AdamW(parameters, fused=True).step()
        torch.optim.RMSprop(parameters, momentum=0.9, foreach=True).step()
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=True).step()
        torch.optim.Adagrad(parameters, foreach=True).step()

    return run


def transfers(draw: Draw, count: int) -> Iterator[Case]:
    """From the host's ordinary memory."""
    for _ in range(count):
        yield Case("transfer", _transfer(draw.size(1 << 10, 1 << 28, 8)))


def _transfer(size: int) -> Any:
    source = torch.empty(size // 4).uniform_()

    def run() -> None:
        source.to("cuda")

    return run
