"""Convolutions: of images, signals and volumes, in groups and channel by channel, spread and transposed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from vramcast.features.measure.calibration.draws import Case, Draw, tensor, through

_CHANNELS = (3, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 2048)
_IMAGES = (4, 7, 8, 10, 14, 16, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 192, 224)
_MOST_FLOPS = 6e11


@dataclass(frozen=True, slots=True)
class _Layer:
    """One convolution. `wanted`: which gradients are asked for, so that some are timed alone."""

    shape: tuple[int, ...]
    c_out: int
    window: int
    dtype: torch.dtype
    wanted: str
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    last: bool = False
    bias: bool = False
    transposed: bool = False

    @property
    def dims(self) -> int:
        return len(self.shape) - 2

    @property
    def flops(self) -> float:
        places = float(self.shape[0])
        for size in self.shape[2:]:
            places *= size / self.stride
        return 2.0 * places * self.c_out * self.shape[1] / self.groups * float(self.window**self.dims)

    def fits(self, draw: Draw) -> bool:
        elements = self.shape[0] * max(self.shape[1], self.c_out)
        for size in self.shape[2:]:
            elements *= size
        reach = self.dilation * (self.window - 1) + 1
        grown = self.stride**self.dims if self.transposed else 1
        fast = _MOST_FLOPS if self.groups == 1 else _MOST_FLOPS / 4
        return min(self.shape[2:]) * 2 > reach and self.flops * grown <= fast and draw.fits(elements * grown)

    def case(self) -> Case:
        what = f"conv{self.dims}d" if self.dims != 2 else "conv"
        window = f"window {self.window}/{self.stride}/{self.dilation}"
        text = f"{what} {self.wanted} {self.shape} to {self.c_out}, {window}, {self.groups} groups, {self.dtype}"
        return Case(f"{text} {self.last} {self.bias} {self.transposed}", self.run)

    def run(self) -> None:
        c_in = self.shape[1]
        sides = (c_in, self.c_out // self.groups) if self.transposed else (self.c_out, c_in // self.groups)
        x = tensor(*self.shape, dtype=self.dtype)
        weight = tensor(*sides, *[self.window] * self.dims, dtype=self.dtype)
        if self.last and self.dims in (2, 3):
            layout = torch.channels_last if self.dims == 2 else torch.channels_last_3d
            x, weight = x.to(memory_format=layout), weight.to(memory_format=layout)
        x.requires_grad_(self.wanted != "weight")
        weight.requires_grad_(self.wanted != "data")
        bias = tensor(self.c_out, dtype=self.dtype, grad=True) if self.bias else None
        padding = self.dilation * (self.window // 2)
        if self.transposed:
            turn: Any = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
            through(turn[self.dims](x, weight, bias, self.stride, 0, 0, self.groups))
            return
        convolve: Any = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[self.dims]
        through(convolve(x, weight, bias, self.stride, padding, self.dilation, self.groups))


def _wanted(draw: Draw) -> str:
    return draw.of(("data", "weight", "both"))


def _image(draw: Draw) -> tuple[int, list[int]]:
    """A side, and numbers of channels usual at it: channels grow where images shrink, as they do along a network."""
    image = draw.of(_IMAGES)
    return image, [count for count in _CHANNELS if 512 <= count * image <= 24000] or list(_CHANNELS)


def _until(draw: Draw, count: int, make: Any) -> Iterator[Case]:
    while count > 0:
        layer = make()
        if layer.fits(draw):
            count -= 1
            yield layer.case()


def images(draw: Draw, count: int) -> Iterator[Case]:
    def make() -> _Layer:
        image, usual = _image(draw)
        c_in, c_out = draw.of(usual), draw.of(usual)
        dtype = torch.float32 if draw.chance(0.4) else draw.half()
        if draw.chance(0.08):
            c_in = 3
        elif draw.chance(0.3):
            c_out = c_in
        window = draw.of((1, 1, 3, 3, 3, 5, 7))
        stride = draw.of((2, 2, 4)) if draw.chance(0.2) else 1
        if c_in == 3 and draw.chance(0.4):
            window = stride = draw.of((4, 8, 14, 16, 32))
        dilation = draw.of((2, 4, 6, 12, 24)) if window == 3 and stride == 1 and draw.chance(0.1) else 1
        batch = min(draw.batch(max(c_in, c_out) * image**2), 256)
        return _Layer((batch, c_in, image, image), c_out, window, dtype, _wanted(draw), stride, 1, dilation,
                      draw.chance(0.4), draw.chance(0.25))  # fmt: skip

    return _until(draw, count, make)


def groups(draw: Draw, count: int) -> Iterator[Case]:
    """Several channels in each group."""

    def make() -> _Layer:
        image = draw.of(_IMAGES)
        width = draw.of((2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 112, 120, 168, 232))
        number = draw.of((2, 2, 4, 8, 10, 16, 16, 32, 32, 64))
        c_in = width * number
        c_out = c_in * draw.of((1, 1, 1, 1, 2))
        window, stride = draw.of((1, 3, 3, 3, 5)), 2 if draw.chance(0.2) else 1
        batch = min(draw.batch(c_in * image**2, 18, 26), 256)
        dtype = torch.float32 if draw.chance(0.4) else draw.half()
        return _Layer((batch, c_in, image, image), c_out, window, dtype, _wanted(draw), stride, number, 1,
                      draw.chance(0.5))  # fmt: skip

    return _until(draw, count, make)


def depthwise(draw: Draw, count: int) -> Iterator[Case]:
    def make() -> _Layer:
        image, usual = _image(draw)
        channels = max(draw.of(usual), 16)
        window, stride = draw.of((3, 3, 3, 5, 5, 7, 7, 9, 11)), 2 if draw.chance(0.25) else 1
        batch = min(draw.batch(channels * image**2, 17, 27), 256)
        dtype = torch.float32 if draw.chance(0.35) else draw.half()
        times = 2 if draw.chance(0.05) else 1
        return _Layer((batch, channels, image, image), channels * times, window, dtype, _wanted(draw), stride, channels,
                      1, draw.chance(0.45), draw.chance(0.2))  # fmt: skip

    return _until(draw, count, make)


def signals(draw: Draw, count: int) -> Iterator[Case]:
    """Convolutions in one dimension: long and strided as at the ends of speech models, and by channel as in the
    middle."""

    def make() -> _Layer:
        dtype, kind = draw.dtype(), draw.of(("plain", "plain", "long", "groups", "depthwise"))
        c_in = c_out = draw.of((64, 80, 128, 144, 256, 384, 512, 768, 1024))
        window, stride, number, length = draw.of((1, 3, 5)), 1, 1, draw.size(64, 8000, 1)
        if kind == "plain":
            c_out = draw.of((64, 128, 256, 384, 512, 768, 1024, 2048))
            stride = draw.of((1, 1, 2))
        elif kind == "long":
            window, stride = draw.of(((2, 2), (3, 2), (8, 4), (10, 5)))
            length = draw.size(2000, 60000, 1)
            c_in = draw.of((1, c_in, c_in))
        elif kind == "groups":
            window, number = draw.of((3, 19, 31, 128)), draw.of((4, 8, 16))
        else:
            window, number = draw.of((3, 4, 7, 15, 31)), c_in
        batch = min(draw.batch(max(c_in, c_out) * length, 18, 26), 64)
        return _Layer((batch, c_in, length), c_out, window, dtype, _wanted(draw), stride, number, 1, False,
                      draw.chance(0.4))  # fmt: skip

    return _until(draw, count, make)


def volumes(draw: Draw, count: int) -> Iterator[Case]:
    def make() -> _Layer:
        side = draw.size(8, 112, 4)
        shape = (draw.of((4, 8, 16, side, side)), side, side)
        c_in, c_out = draw.of((3, 16, 32, 32, 64, 128, 256, 512)), draw.of((16, 32, 64, 128, 256, 512))
        window, stride = draw.of((1, 3, 3)), 2 if draw.chance(0.2) else 1
        number = 1
        if draw.chance(0.15):
            c_out = number = c_in = max(c_in, 32)
        return _Layer((draw.size(1, 16, 1), c_in, *shape), c_out, window, draw.dtype(), _wanted(draw), stride, number,
                      1, draw.chance(0.2), draw.chance(0.3))  # fmt: skip

    return _until(draw, count, make)


def transposed(draw: Draw, count: int) -> Iterator[Case]:
    """Transposed convolutions, as decoders and generators grow images."""

    def make() -> _Layer:
        image, usual = _image(draw)
        c_in = draw.of(usual)
        window, stride = draw.of(((2, 2), (2, 2), (4, 2), (3, 2), (4, 4)))
        batch = min(draw.batch(c_in * image**2 * 2, 17, 25), 128)
        dims = draw.of((2, 2, 2, 1, 3))
        shape = {1: (image * 32,), 2: (image, image), 3: (8, image, image)}[dims]
        return _Layer((batch, c_in, *shape), max(c_in // 2, 8), window, draw.dtype(), _wanted(draw), stride, 1, 1,
                      dims == 2 and draw.chance(0.3), draw.chance(0.6), True)  # fmt: skip

    return _until(draw, count, make)
