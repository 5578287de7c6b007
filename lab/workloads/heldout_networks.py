"""Held-out workloads: convolutional and coordinate networks written by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


class ResidualBlock(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x).mul(self.scale)


class DenseResidual(nn.Module):
    """ESRGAN's block: five convolutions, each of which sees all the features before it."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Conv2d(width + i * growth, growth if i < 4 else width, 3, padding=1) for i in range(5)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = x
        for layer in self.layers[:-1]:
            features = torch.cat([features, F.leaky_relu(layer(features), 0.2)], dim=1)
        return x + 0.2 * self.layers[-1](features)


def super_resolution(
    *, kind: str = "edsr", batch: int = 16, crop: int = 96, width: int = 128, blocks: int = 16, scale: int = 4,
    precision: str = "fp32", optimizer: str = "adam", style: str = "function",
) -> Step:  # fmt: skip
    """Blocks at low resolution, then pixel shuffle (edsr) or nearest upsampling (rrdb)."""
    body: list[nn.Module] = []
    for _ in range(blocks):
        body.append(ResidualBlock(width, 0.1) if kind == "edsr" else DenseResidual(width, width // 2))
    upscale: list[nn.Module] = []
    for _ in range(int(math.log2(scale))):
        if kind == "edsr":
            upscale += [nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2)]
        else:
            upscale += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1), nn.LeakyReLU(0.2, True)]
    model = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *body, *upscale, nn.Conv2d(width, 3, 3, padding=1)).cuda()
    data = {"low": torch.rand(batch, 3, crop, crop), "high": torch.rand(batch, 3, scale * crop, scale * crop)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        restored = model(batch["low"])
        return F.l1_loss(restored, batch["high"]), restored

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


class Gate(nn.Module):
    """Attention U-Net's gate: the coarse features say where the fine ones matter."""

    def __init__(self, fine: int, coarse: int) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(fine, fine // 2, 1), nn.Conv2d(coarse, fine // 2, 1)
        self.weight = nn.Conv2d(fine // 2, 1, 1)

    def forward(self, fine: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
        wide = F.interpolate(self.coarse(coarse), size=fine.shape[-2:], mode="bilinear", align_corners=True)
        return fine * torch.sigmoid(self.weight(F.relu(self.fine(fine) + wide)))


def attention_unet(
    *, batch: int = 8, size: int = 288, width: int = 48, depth: int = 4, precision: str = "fp32",
    optimizer: str = "adamw", style: str = "function",
) -> Step:  # fmt: skip
    """Instance norms, separable convolutions, gated skips, transposed convolutions, and a Dice loss."""

    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs), nn.Conv2d(inputs, outputs, 1),
            nn.InstanceNorm2d(outputs, affine=True), nn.PReLU(outputs),
            nn.Conv2d(outputs, outputs, 3, padding=2, dilation=2), nn.InstanceNorm2d(outputs, affine=True), nn.PReLU(),
        )  # fmt: skip

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [width * 2**i for i in range(depth + 1)]
            self.down = nn.ModuleList([block(a, b) for a, b in zip([4, *widths], widths, strict=False)])
            pairs = list(zip(reversed(widths[:-1]), reversed(widths[1:]), strict=True))
            self.gates = nn.ModuleList([Gate(fine, coarse) for fine, coarse in pairs])
            self.up = nn.ModuleList([nn.ConvTranspose2d(coarse, fine, 2, stride=2) for fine, coarse in pairs])
            self.merge = nn.ModuleList([block(2 * fine, fine) for fine, _ in pairs])
            self.output = nn.Conv2d(width, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skips = []
            for i, layer in enumerate(self.down):
                x = layer(x if i == 0 else F.avg_pool2d(x, 2))
                skips.append(x)
            for skip, gate, up, merge in zip(reversed(skips[:-1]), self.gates, self.up, self.merge, strict=True):
                x = merge(torch.cat([gate(skip, x), up(x)], dim=1))
            return self.output(x)

    model = Network().cuda()
    data = {"scan": torch.randn(batch, 4, size, size), "mask": torch.randint(0, 2, (batch, 3, size, size)).float()}

    def forward(model: nn.Module, batch: Batch) -> Any:
        scores = model(batch["scan"])
        chance = scores.float().sigmoid()
        overlap = (chance * batch["mask"]).sum((2, 3))
        dice = 1 - (2 * overlap + 1) / (chance.sum((2, 3)) + batch["mask"].sum((2, 3)) + 1)
        return dice.mean() + F.binary_cross_entropy_with_logits(scores, batch["mask"]), scores

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def volume_autoencoder(
    *, batch: int = 6, size: int = 96, width: int = 24, layout: str = "channels_last", precision: str = "bf16",
    optimizer: str = "adam",
) -> Step:  # fmt: skip
    """Strided 3-D convolutions down and transposed ones up, in channels_last_3d."""
    format_ = torch.channels_last_3d if layout == "channels_last" else torch.contiguous_format
    layers: list[nn.Module] = [nn.Conv3d(1, width, 5, padding=2), nn.BatchNorm3d(width), nn.ELU()]
    for i in range(3):
        a, b = width * 2**i, width * 2 ** (i + 1)
        layers += [nn.Conv3d(a, b, 4, stride=2, padding=1), nn.BatchNorm3d(b), nn.ELU()]
    for i in reversed(range(3)):
        a, b = width * 2 ** (i + 1), width * 2**i
        layers += [nn.ConvTranspose3d(a, b, 4, stride=2, padding=1), nn.BatchNorm3d(b), nn.ELU()]
    model = nn.Sequential(*layers, nn.Conv3d(width, 1, 3, padding=1)).cuda().to(memory_format=format_)

    def forward(model: nn.Module, batch: Batch) -> Any:
        volume = batch["volume"].to(memory_format=format_)
        return F.huber_loss(model(volume), volume)

    return train(
        model, {"volume": torch.randn(batch, 1, size, size, size)}, forward,
        make_optimizer(optimizer, model.parameters()), precision=precision,
    )  # fmt: skip


def radiance_field(
    *, rays: int = 4096, samples: int = 128, width: int = 256, depth: int = 8, precision: str = "fp32",
    optimizer: str = "adam",
) -> Step:  # fmt: skip
    """NeRF: positions along rays, a frequency encoding, an MLP with a skip, and compositing by a product."""

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bands", 2.0 ** torch.arange(10) * math.pi)
            self.first = nn.ModuleList([nn.Linear(63 if i == 0 else width, width) for i in range(depth // 2)])
            self.second = nn.ModuleList(
                [nn.Linear(width + 63 if i == 0 else width, width) for i in range(depth - depth // 2)]
            )
            self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

        def encode(self, x: torch.Tensor) -> torch.Tensor:
            angles = (x.unsqueeze(-1) * self.bands).flatten(-2)
            return torch.cat([x, angles.sin(), angles.cos()], dim=-1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            encoded = self.encode(x)
            hidden = encoded
            for layer in self.first:
                hidden = F.relu(layer(hidden))
            hidden = torch.cat([hidden, encoded], dim=-1)
            for layer in self.second:
                hidden = F.relu(layer(hidden))
            return F.softplus(self.density(hidden)), self.colour(hidden).sigmoid()

    model = Field().cuda()
    data = {"origin": torch.randn(rays, 3), "direction": torch.randn(rays, 3), "colour": torch.rand(rays, 3)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        depths = torch.linspace(2, 6, samples, device="cuda") + torch.rand(rays, samples, device="cuda") * 4 / samples
        points = batch["origin"][:, None] + batch["direction"][:, None] * depths[..., None]
        density, colour = model(points)
        alpha = 1 - torch.exp(-density.squeeze(-1) * 4 / samples)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], dim=1), dim=1)[:, :-1]
        rendered = ((alpha * clear)[..., None] * colour).sum(dim=1)
        return F.mse_loss(rendered, batch["colour"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


def physics_informed(
    *, points: int = 120_000, width: int = 160, depth: int = 6, optimizer: str = "adam", precision: str = "fp32"
) -> Step:
    """A network fitted to a heat equation: first and second derivatives by input are part of the loss."""
    layers: list[nn.Module] = [nn.Linear(3, width), nn.Tanh()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).cuda()

    def sample() -> Batch:
        return {"points": torch.rand(points, 3, device="cuda", requires_grad=True)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        x = batch["points"]
        u = model(x)
        first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        laplacian: Any = 0.0
        for axis in (0, 1):
            laplacian = laplacian + torch.autograd.grad(first[:, axis].sum(), x, create_graph=True)[0][:, axis]
        return (first[:, 2] - 0.1 * laplacian).square().mean() + u[:1000].square().mean()

    return train(model, sample, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


class SplineLayer(nn.Module):
    """A Kolmogorov-Arnold layer: every edge has its own B-spline, besides a SiLU path."""

    def __init__(self, inputs: int, outputs: int, grid: int, order: int = 3) -> None:
        super().__init__()
        self.order = order
        knots = (torch.arange(-order, grid + order + 1) * 2 / grid - 1).expand(inputs, -1).contiguous()
        self.register_buffer("knots", knots)
        self.base = nn.Parameter(torch.randn(outputs, inputs) * 0.05)
        self.spline = nn.Parameter(torch.randn(outputs, inputs, grid + order) * 0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide, knots = x.unsqueeze(-1), self.knots
        bases = ((wide >= knots[:, :-1]) & (wide < knots[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (wide - knots[:, : -(k + 1)]) / (knots[:, k:-1] - knots[:, : -(k + 1)])
            right = (knots[:, k + 1 :] - wide) / (knots[:, k + 1 :] - knots[:, 1:-k])
            bases = left * bases[..., :-1] + right * bases[..., 1:]
        return F.linear(F.silu(x), self.base) + F.linear(bases.flatten(1), self.spline.flatten(1))


def kolmogorov_arnold(
    *, batch: int = 8192, widths: tuple[int, ...] = (784, 256, 256, 64, 10), grid: int = 8,
    optimizer: str = "adamw", precision: str = "fp32", style: str = "loop",
) -> Step:  # fmt: skip
    model = nn.Sequential(*[SplineLayer(a, b, grid) for a, b in pairwise(widths)]).cuda()
    data = {"x": torch.rand(batch, widths[0]) * 2 - 1, "y": torch.randint(0, widths[-1], (batch,))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)
