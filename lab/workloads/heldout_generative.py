"""Held-out workloads: adversarial pairs, invertible flows and a variational autoencoder."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from lab.workloads.common import Batch, Step, autocast_for, make_optimizer, train


def wgan(
    *, batch: int = 128, size: int = 64, width: int = 96, critics: int = 3, clamp: float = 0.01,
    precision: str = "fp32", optimizer: str = "rmsprop",
) -> Step:  # fmt: skip
    """Several critic updates with clipped, spectrally normalised weights, then one of the generator."""
    generator = nn.Sequential(
        nn.Linear(100, 8 * width * (size // 16) ** 2), nn.Unflatten(1, (8 * width, size // 16, size // 16)),
        *itertools.chain.from_iterable(
            (
                nn.Upsample(scale_factor=2, mode="nearest"),
                nn.Conv2d(width * 2**i, width * 2 ** (i - 1), 3, padding=1),
                nn.BatchNorm2d(width * 2 ** (i - 1)),
                nn.ReLU(inplace=True),
            )
            for i in (3, 2, 1)
        ),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(width, 3, 3, padding=1), nn.Tanh(),
    ).cuda()  # fmt: skip
    steps: list[nn.Module] = []
    for i in range(4):
        inputs = 3 if i == 0 else width * 2 ** (i - 1)
        steps += [spectral_norm(nn.Conv2d(inputs, width * 2**i, 4, stride=2, padding=1)), nn.LeakyReLU(0.1)]
    critic = nn.Sequential(*steps, nn.Flatten(), nn.Linear(8 * width * (size // 16) ** 2, 1)).cuda()
    for_critic = make_optimizer(optimizer, critic.parameters(), lr=5e-5)
    for_generator = make_optimizer(optimizer, generator.parameters(), lr=5e-5)
    images = torch.rand(batch, 3, size, size) * 2 - 1

    def step() -> None:
        for _ in range(critics):
            real = images.to("cuda")
            with torch.no_grad(), autocast_for(precision):
                fake = generator(torch.randn(batch, 100, device="cuda"))
            for_critic.zero_grad()
            with autocast_for(precision):
                loss = critic(fake).mean() - critic(real).mean()
            loss.backward()
            for_critic.step()
            with torch.no_grad():
                for p in critic.parameters():
                    p.clamp_(-clamp, clamp)
        for_generator.zero_grad()
        with autocast_for(precision):
            loss = -critic(generator(torch.randn(batch, 100, device="cuda"))).mean()
        loss.backward()
        for_generator.step()

    return step


def _translator(width: int, blocks: int) -> nn.Sequential:
    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.ReflectionPad2d(1), nn.Conv2d(channels, channels, 3), nn.InstanceNorm2d(channels), nn.ReLU(True),
                nn.ReflectionPad2d(1), nn.Conv2d(channels, channels, 3), nn.InstanceNorm2d(channels),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x)

    def half(channels: int) -> list[nn.Module]:
        return [
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1), nn.InstanceNorm2d(2 * channels), nn.ReLU(True)
        ]  # fmt: skip

    def double(channels: int) -> list[nn.Module]:
        return [
            nn.ConvTranspose2d(channels, channels // 2, 3, stride=2, padding=1, output_padding=1),
            nn.InstanceNorm2d(channels // 2), nn.ReLU(True),
        ]  # fmt: skip

    return nn.Sequential(
        nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7), nn.InstanceNorm2d(width), nn.ReLU(True),
        *half(width), *half(2 * width), *[Residual(4 * width) for _ in range(blocks)],
        *double(4 * width), *double(2 * width), nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh(),
    )  # fmt: skip


def _patch_critic(width: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2, True)]
    for i in range(3):
        outputs = width * 2 ** (i + 1)
        stride = 2 if i < 2 else 1
        layers += [nn.Conv2d(width * 2**i, outputs, 4, stride, 1), nn.InstanceNorm2d(outputs), nn.LeakyReLU(0.2, True)]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4, 1, 1))


def cycle_gan(
    *, batch: int = 3, size: int = 224, width: int = 64, blocks: int = 6, precision: str = "fp32",
    optimizer: str = "adam",
) -> Step:  # fmt: skip
    """Two translators and two critics, with cycle and identity losses in one graph."""
    there, back = _translator(width, blocks).cuda(), _translator(width, blocks).cuda()
    critic_a, critic_b = _patch_critic(width).cuda(), _patch_critic(width).cuda()
    critics = [critic_a, critic_b]
    for_generators = make_optimizer(optimizer, itertools.chain(there.parameters(), back.parameters()), lr=2e-4)
    for_critics = make_optimizer(optimizer, itertools.chain(*[c.parameters() for c in critics]), lr=2e-4)
    first, second = torch.rand(batch, 3, size, size), torch.rand(batch, 3, size, size)

    def towards(scores: torch.Tensor, value: float) -> torch.Tensor:
        return F.mse_loss(scores, torch.full_like(scores, value))

    def step() -> None:
        a, b = first.to("cuda"), second.to("cuda")
        for critic in critics:
            critic.requires_grad_(False)
        for_generators.zero_grad()
        with autocast_for(precision):
            fake_b, fake_a = there(a), back(b)
            loss = towards(critic_b(fake_b), 1.0) + towards(critic_a(fake_a), 1.0)
            loss = loss + 10 * (F.l1_loss(back(fake_b), a) + F.l1_loss(there(fake_a), b))
            loss = loss + 5 * (F.l1_loss(there(b), b) + F.l1_loss(back(a), a))
        loss.backward()
        for_generators.step()
        for_critics.zero_grad()
        for critic, real, fake in ((critic_a, a, fake_a), (critic_b, b, fake_b)):
            critic.requires_grad_(True)
            with autocast_for(precision):
                loss = 0.5 * (towards(critic(real), 1.0) + towards(critic(fake.detach()), 0.0))
            loss.backward()
        for_critics.step()

    return step


def vocoder(
    *, batch: int = 12, frames: int = 40, width: int = 384, precision: str = "fp32", optimizer: str = "adamw"
) -> Step:
    """HiFi-GAN's shape: weight-normed 1-D transposed convolutions, critics at three scales, feature matching."""

    class Upsampler(nn.Module):
        def __init__(self, inputs: int, rate: int) -> None:
            super().__init__()
            outputs = inputs // 2
            self.up = weight_norm(nn.ConvTranspose1d(inputs, outputs, 2 * rate, rate, rate // 2))
            self.residual = nn.ModuleList(
                [
                    weight_norm(
                        nn.Conv1d(outputs, outputs, kernel, padding=dilation * (kernel // 2), dilation=dilation)
                    )
                    for kernel in (3, 7)
                    for dilation in (1, 3)
                ]
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.up(F.leaky_relu(x, 0.1))
            for layer in self.residual:
                x = x + layer(F.leaky_relu(x, 0.1))
            return x

    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shapes = [(1, 64, 15, 1, 1), (64, 128, 41, 2, 4), (128, 256, 41, 4, 16), (256, 512, 41, 4, 16)]
            self.layers = nn.ModuleList(
                [weight_norm(nn.Conv1d(a, b, k, s, k // 2, groups=g)) for a, b, k, s, g in shapes]
            )
            self.output = weight_norm(nn.Conv1d(512, 1, 3, padding=1))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
            features = []
            for layer in self.layers:
                x = F.leaky_relu(layer(x), 0.1)
                features.append(x)
            return self.output(x), features

    ups = [Upsampler(width // 2**i, rate) for i, rate in enumerate((8, 8, 4))]
    generator = nn.Sequential(
        weight_norm(nn.Conv1d(80, width, 7, padding=3)), *ups, nn.LeakyReLU(0.1),
        weight_norm(nn.Conv1d(width // 8, 1, 7, padding=3)), nn.Tanh(),
    ).cuda()  # fmt: skip
    critics = nn.ModuleList([Critic() for _ in range(3)]).cuda()
    for_generator = make_optimizer(optimizer, generator.parameters())
    for_critics = make_optimizer(optimizer, critics.parameters())
    mel, sound = torch.randn(batch, 80, frames), torch.randn(batch, 1, 256 * frames)

    def judge(x: torch.Tensor) -> list[Any]:
        return [critic(x if i == 0 else F.avg_pool1d(x, 2**i)) for i, critic in enumerate(critics)]

    def step() -> None:
        y = sound.to("cuda")
        with autocast_for(precision):
            fake = generator(mel.to("cuda"))
            real_scores, fake_scores = judge(y), judge(fake.detach())
            loss = sum(
                (1 - r).square().mean() + f.square().mean()
                for (r, _), (f, _) in zip(real_scores, fake_scores, strict=True)
            )
        for_critics.zero_grad()
        loss.backward()
        for_critics.step()
        with autocast_for(precision):
            loss = 45 * F.l1_loss(fake, y)
            with torch.no_grad():
                targets = judge(y)
            for (score, features), (_, wanted) in zip(judge(fake), targets, strict=True):
                loss = loss + (1 - score).square().mean()
                loss = loss + 2 * sum(F.l1_loss(a, b) for a, b in zip(features, wanted, strict=True))
        for_generator.zero_grad()
        loss.backward()
        for_generator.step()

    return step


class Coupling(nn.Module):
    """One step of Glow: activation norm, an invertible 1x1 convolution, an affine coupling."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.shift, self.scale = (nn.Parameter(torch.zeros(1, channels, 1, 1)) for _ in range(2))
        self.mix = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels)).Q.contiguous())
        self.net = nn.Sequential(
            nn.Conv2d(channels // 2, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 1),
            nn.ReLU(inplace=True), nn.Conv2d(width, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, volume: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pixels = x.shape[-1] * x.shape[-2]
        x = (x + self.shift) * self.scale.exp()
        x = F.conv2d(x, self.mix[..., None, None])
        volume = volume + pixels * (self.scale.sum() + torch.slogdet(self.mix)[1])
        left, right = x.chunk(2, dim=1)
        move, stretch = self.net(left).chunk(2, dim=1)
        stretch = torch.sigmoid(stretch + 2)
        return torch.cat([left, (right + move) * stretch], dim=1), volume + stretch.log().sum((1, 2, 3))


def glow(
    *, batch: int = 40, size: int = 64, width: int = 256, levels: int = 3, depth: int = 6, precision: str = "fp32",
    optimizer: str = "adamax", style: str = "function",
) -> Step:  # fmt: skip
    """A normalising flow with squeezes between levels, trained by likelihood."""
    stages, channels = [], 3
    for _ in range(levels):
        channels *= 4
        stages.append(nn.ModuleList([Coupling(channels, width) for _ in range(depth)]))
        channels //= 2
    model = nn.ModuleList(stages).cuda()

    def forward(model: Any, batch: Batch) -> Any:
        x = batch["images"]
        volume = torch.zeros(x.shape[0], device=x.device)
        likelihood: Any = 0.0
        for stage in model:
            x = F.pixel_unshuffle(x, 2)
            for step in stage:
                x, volume = step(x, volume)
            x, done = x.chunk(2, dim=1)
            likelihood = likelihood - 0.5 * (done.square() + math.log(2 * math.pi)).sum((1, 2, 3))
        return -(likelihood + volume).mean() / (3 * size * size)

    data = {"images": torch.rand(batch, 3, size, size)}
    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def variational_autoencoder(
    *, batch: int = 4096, genes: int = 16000, width: int = 1024, latent: int = 64, precision: str = "fp32",
    optimizer: str = "adam", style: str = "loop",
) -> Step:  # fmt: skip
    """A VAE of gene counts: wide linear layers, BatchNorm1d, a negative binomial likelihood."""

    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(), nn.Dropout(0.1))

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(block(genes, width), block(width, width))
            self.mean, self.variance = nn.Linear(width, latent), nn.Linear(width, latent)
            self.decoder = nn.Sequential(block(latent, width), block(width, width), nn.Linear(width, genes))
            self.dispersion = nn.Parameter(torch.zeros(genes))

        def forward(self, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = self.encoder(torch.log1p(counts))
            posterior = torch.distributions.Normal(self.mean(hidden), self.variance(hidden).exp().sqrt() + 1e-4)
            share = self.decoder(posterior.rsample()).softmax(dim=-1)
            rate = share * counts.sum(dim=-1, keepdim=True)
            total = self.dispersion.exp()
            both = torch.log(total + rate + 1e-8)
            likelihood = total * (torch.log(total + 1e-8) - both) + counts * (torch.log(rate + 1e-8) - both)
            likelihood = likelihood + torch.lgamma(counts + total) - torch.lgamma(total) - torch.lgamma(counts + 1)
            prior = torch.distributions.Normal(torch.zeros_like(posterior.loc), torch.ones_like(posterior.scale))
            divergence = torch.distributions.kl_divergence(posterior, prior).sum(dim=-1)
            return (divergence - likelihood.sum(dim=-1)).mean(), share

    model = Network().cuda().train()
    data = {"counts": torch.randint(0, 20, (batch, genes)).float()}

    def forward(model: nn.Module, batch: Batch) -> Any:
        return model(batch["counts"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)
