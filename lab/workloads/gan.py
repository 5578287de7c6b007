"""Adversarial training: two networks, two optimizers, and gradients of gradients."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Step, autocast_for, make_optimizer


def _dcgan_generator(noise: int, width: int, size: int) -> nn.Sequential:
    doublings = size.bit_length() - 3
    channels = width * 2 ** (doublings - 1)
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(noise, channels, 4, 1, 0, bias=False), nn.BatchNorm2d(channels), nn.ReLU(True)
    ]  # fmt: skip
    for _ in range(doublings - 1):
        layers += [
            nn.ConvTranspose2d(channels, channels // 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(channels // 2),
            nn.ReLU(True),
        ]
        channels //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh())


def _dcgan_discriminator(width: int, size: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)]
    channels = width
    for _ in range(size.bit_length() - 4):
        layers += [
            nn.Conv2d(channels, 2 * channels, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        channels *= 2
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, 1, 0, bias=False), nn.Flatten(0))


def dcgan(
    *, batch: int = 144, size: int = 128, noise: int = 128, width: int = 96, precision: str = "fp32",
    optimizer: str = "adam",
) -> Step:  # fmt: skip
    """The discriminator on real and fake images, then the generator, each with its own optimizer."""
    generator = _dcgan_generator(noise, width, size).cuda()
    discriminator = _dcgan_discriminator(width, size).cuda()
    generator_optimizer = make_optimizer(optimizer, generator.parameters(), lr=2e-4)
    discriminator_optimizer = make_optimizer(optimizer, discriminator.parameters(), lr=2e-4)
    images = torch.randn(batch, 3, size, size)

    def step() -> None:
        real = images.to("cuda")
        discriminator.zero_grad()
        with autocast_for(precision):
            scores = discriminator(real)
            loss_real = F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))
        loss_real.backward()
        fake = generator(torch.randn(batch, noise, 1, 1, device="cuda"))
        with autocast_for(precision):
            scores = discriminator(fake.detach())
            loss_fake = F.binary_cross_entropy_with_logits(scores, torch.zeros_like(scores))
        loss_fake.backward()
        discriminator_optimizer.step()

        generator.zero_grad()
        with autocast_for(precision):
            scores = discriminator(fake)
            loss = F.binary_cross_entropy_with_logits(scores, torch.ones_like(scores))
        loss.backward()
        generator_optimizer.step()

    return step


class StyledConv(nn.Module):
    """A convolution whose weights are scaled for each sample by its style, then normalised."""

    def __init__(self, inputs: int, outputs: int, style: int, up: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3) / (inputs * 9) ** 0.5)
        self.style = nn.Linear(style, inputs)
        self.strength = nn.Parameter(torch.zeros(1))
        self.up = up

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        batch, channels, height, width = x.shape
        weight = self.weight[None] * (self.style(w) + 1)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        x = x.reshape(1, batch * channels, height, width)
        x = F.conv2d(x, weight.flatten(0, 1), padding=1, groups=batch)
        x = x.reshape(batch, -1, height, width)
        x = x + self.strength * torch.randn(batch, 1, height, width, device=x.device)
        return F.leaky_relu(x, 0.2)


class StyleGenerator(nn.Module):
    def __init__(self, channels: list[int], style: int) -> None:
        super().__init__()
        self.mapping = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(style, style), nn.LeakyReLU(0.2))])
        self.start = nn.Parameter(torch.randn(1, channels[0], 4, 4))
        pairs = list(pairwise(channels))
        self.blocks = nn.ModuleList(
            [nn.ModuleList([StyledConv(a, b, style, True), StyledConv(b, b, style, False)]) for a, b in pairs]
        )
        self.to_rgb = nn.Conv2d(channels[-1], 3, 1)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        w = self.mapping(z)
        x = self.start.expand(z.shape[0], -1, -1, -1)
        for first, second in self.blocks:
            x = second(first(x, w), w)
        return self.to_rgb(x)


class ResidualDiscriminator(nn.Module):
    def __init__(self, channels: list[int]) -> None:
        super().__init__()
        self.from_rgb = nn.Conv2d(3, channels[0], 1)
        pairs = list(pairwise(channels))
        self.main = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Conv2d(a, a, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(a, b, 3, padding=1), nn.LeakyReLU(0.2)
                )
                for a, b in pairs
            ]
        )
        self.skip = nn.ModuleList([nn.Conv2d(a, b, 1, bias=False) for a, b in pairs])
        self.output = nn.Linear(channels[-1] * 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.from_rgb(x)
        for main, skip in zip(self.main, self.skip, strict=True):
            x = F.avg_pool2d(main(x) + skip(x), 2)
        return self.output(x.flatten(1))


def style_gan(
    *, batch: int = 14, size: int = 128, style: int = 512, penalty: str = "r1", optimizer: str = "adam",
    widest: int = 512,
) -> Step:  # fmt: skip
    """A small StyleGAN2; the discriminator pays R1's penalty on real images or WGAN-GP's between both."""
    channels = [min(widest, 8192 // 2**i) for i in range(2, size.bit_length())]
    generator = StyleGenerator(channels, style).cuda()
    discriminator = ResidualDiscriminator(channels[::-1]).cuda()
    generator_optimizer = make_optimizer(optimizer, generator.parameters(), lr=2e-3)
    discriminator_optimizer = make_optimizer(optimizer, discriminator.parameters(), lr=2e-3)
    images = torch.randn(batch, 3, size, size)

    def gradient_penalty(real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        if penalty == "r1":
            points = real.detach().requires_grad_(True)
        else:
            mix = torch.rand(batch, 1, 1, 1, device="cuda")
            points = torch.lerp(real, fake.detach(), mix).requires_grad_(True)
        (gradient,) = torch.autograd.grad(discriminator(points).sum(), points, create_graph=True)
        norm = gradient.flatten(1).norm(dim=1)
        return norm.square().mean() if penalty == "r1" else (norm - 1).square().mean()

    def step() -> None:
        real = images.to("cuda")
        with torch.no_grad():
            fake = generator(torch.randn(batch, style, device="cuda"))
        discriminator_optimizer.zero_grad()
        loss = F.softplus(-discriminator(real)).mean() + F.softplus(discriminator(fake)).mean()
        loss = loss + 10 * gradient_penalty(real, fake)
        loss.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        loss = F.softplus(-discriminator(generator(torch.randn(batch, style, device="cuda")))).mean()
        loss.backward()
        discriminator.requires_grad_(True)
        generator_optimizer.step()

    return step
