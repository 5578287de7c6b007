"""Models that no other workload here has: convolution and attention in other orders, scans, points and graphs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class CrossBlock(nn.Module):
    """A transformer block of a latent diffusion U-Net: attention, attention to the text, a gated MLP."""

    def __init__(self, width: int, context: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.queries = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.keys = nn.ModuleList(nn.Linear(size, 2 * width, bias=False) for size in (width, context))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def _attend(self, number: int, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        q = self.queries[number](x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.keys[number](source).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out[number](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self._attend(0, y, y)
        x = x + self._attend(1, self.norms[1](x), context)
        value, gate = self.up(self.norms[2](x)).chunk(2, dim=-1)
        return x + self.down(value * F.gelu(gate))


class LatentUNet(nn.Module):
    """Two levels with cross attention at the lower one, as Stable Diffusion XL's, in small."""

    def __init__(self, width: int = 128, context: int = 512) -> None:
        super().__init__()
        self.inside = nn.Conv2d(4, width, 3, padding=1)
        self.first = self._residual(width, width)
        self.shrink = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(CrossBlock(2 * width, context) for _ in range(3))
        self.grow = nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1)
        self.last = self._residual(2 * width, width)
        self.outside = nn.Conv2d(width, 4, 3, padding=1)

    @staticmethod
    def _residual(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(
            nn.GroupNorm(32, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(32, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        kept = self.inside(x)
        kept = kept + self.first(kept)
        low = self.shrink(kept)
        y = low.flatten(2).transpose(1, 2)
        for block in self.blocks:
            y = block(y, context)
        low = low + y.transpose(1, 2).reshape(low.shape)
        return self.outside(self.last(torch.cat([self.grow(low), kept], dim=1)))


class VAE(nn.Module):
    """Strided convolutions to a latent and back, sampled in between."""

    def __init__(self, width: int = 48, latent: int = 8) -> None:
        super().__init__()
        down, up = [nn.Conv2d(3, width, 3, padding=1)], []
        for level in (1, 2, 4):
            down += [
                nn.BatchNorm2d(level * width),
                nn.LeakyReLU(0.2),
                nn.Conv2d(level * width, 2 * level * width, 4, 2, 1),
            ]
            up = [nn.ConvTranspose2d(2 * level * width, level * width, 4, 2, 1), nn.InstanceNorm2d(level * width),
                  nn.ELU(), *up]  # fmt: skip
        self.encoder = nn.Sequential(*down, nn.Conv2d(8 * width, 2 * latent, 1))
        self.decoder = nn.Sequential(nn.Conv2d(latent, 8 * width, 1), *up, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).mean()
        return F.mse_loss(self.decoder(z).sigmoid(), x) + 1e-3 * divergence


class StateSpaceBlock(nn.Module):
    """Mamba-2's state space duality in plain PyTorch: chunks, and a scan of their states."""

    def __init__(self, width: int, heads: int = 16, state: int = 64, chunk: int = 64) -> None:
        super().__init__()
        self.heads, self.state, self.chunk, self.inner = heads, state, chunk, 2 * width
        self.norm = nn.RMSNorm(width)
        self.inside = nn.Linear(width, 2 * self.inner + 2 * state + heads, bias=False)
        self.mix = nn.Conv1d(
            self.inner + 2 * state, self.inner + 2 * state, 4, padding=3, groups=self.inner + 2 * state
        )
        self.log_a = nn.Parameter(torch.zeros(heads))
        self.dt_bias, self.skip = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.ones(heads))
        self.outside = nn.Linear(self.inner, width, bias=False)

    @staticmethod
    def _segments(x: torch.Tensor) -> torch.Tensor:
        length = x.size(-1)
        x = x[..., None].expand(*x.shape, length)
        below = torch.tril(torch.ones(length, length, device=x.device, dtype=torch.bool), diagonal=-1)
        x = torch.cumsum(x.masked_fill(~below, 0), dim=-2)
        return x.masked_fill(~torch.tril(torch.ones_like(below)), -torch.inf)

    def _scan(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        x, a, b, c = (t.unflatten(1, (-1, self.chunk)) for t in (x, a, b, c))
        a = a.permute(0, 3, 1, 2)
        total = a.cumsum(-1)
        inside = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, self._segments(a).exp(), x)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, (total[..., -1:] - total).exp(), x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], dim=1)
        decay = self._segments(F.pad(total[..., -1], (1, 0))).exp()
        states = torch.einsum("bhzc,bchpn->bzhpn", decay, states)[:, :-1]
        return (inside + torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, total.exp())).flatten(1, 2)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        z, x, dt = self.inside(self.norm(u)).split([self.inner, self.inner + 2 * self.state, self.heads], dim=-1)
        x = F.silu(self.mix(x.transpose(1, 2))[..., : u.size(1)].transpose(1, 2))
        x, b, c = x.split([self.inner, self.state, self.state], dim=-1)
        dt = F.softplus(dt + self.dt_bias)
        x = x.unflatten(-1, (self.heads, -1))
        y = self._scan(x * dt[..., None], -self.log_a.exp() * dt, b, c) + x * self.skip[:, None]
        return u + self.outside(y.flatten(2).to(z.dtype) * F.silu(z))


class TimeMix(nn.Module):
    """RWKV's way: the token before mixed in, a decayed sum of keys and values (by chunks), a squared ReLU."""

    def __init__(self, width: int, heads: int = 12, chunk: int = 128) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.mixed = nn.Parameter(torch.full((5, width), 0.5))
        self.norm, self.norm_2, self.group = nn.LayerNorm(width), nn.LayerNorm(width), nn.GroupNorm(heads, width)
        self.r, self.k, self.v, self.g, self.out = (nn.Linear(width, width, bias=False) for _ in range(5))
        self.decay = nn.Parameter(torch.linspace(-6, -1, heads))
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        before = F.pad(y, (0, 0, 1, -1)) - y
        r, k, v = (
            layer(y + before * mixed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, mixed in zip((self.r, self.k, self.v), self.mixed, strict=False)
        )
        w = -self.decay.exp()[:, None]
        positions = torch.arange(self.chunk, device=x.device)
        within = (w[..., None] * (positions[:, None] - positions).clamp(min=0)).exp().tril().to(x.dtype)
        forward, back = (
            (w * positions).exp()[..., None].to(x.dtype),
            (w * (self.chunk - positions)).exp()[..., None].to(x.dtype),
        )
        state = x.new_zeros(x.size(0), self.heads, k.size(-1), v.size(-1))
        parts = []
        for a, b, c in zip(*(t.split(self.chunk, dim=2) for t in (r, k, v)), strict=True):
            parts.append(((a @ b.transpose(-1, -2)) * within) @ c + (a @ state) * forward)
            state = state * (w * self.chunk).exp()[..., None].to(x.dtype) + (b * back).transpose(-1, -2) @ c
        out = torch.cat(parts, dim=2).transpose(1, 2).flatten(2)
        out = self.group(out.flatten(0, 1)).view_as(x) * F.silu(self.g(y + before * self.mixed[3]))
        x = x + self.out(out)
        return x + self.down(F.relu(self.up(self.norm_2(x))).square())


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * tokens, tokens)
        )
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.norm_1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm_2(x))


class Mixer(nn.Module):
    def __init__(self, layers: int = 6, width: int = 512, patch: int = 16, size: int = 224) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(MixerBlock((size // patch) ** 2, width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.patch(x).flatten(2).transpose(1, 2))).mean(1))


class PointNet(nn.Module):
    """Points through shared layers, turned by a small network, the largest of each feature."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        self.turn = nn.Sequential(*self._layers(3, 64, 128, 1024))
        self.turned = nn.Sequential(nn.Linear(1024, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 9))
        self.body = nn.Sequential(*self._layers(3, 64, 128, 1024))
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(512, classes)
        )

    @staticmethod
    def _layers(*widths: int) -> list[nn.Module]:
        found: list[nn.Module] = []
        for inside, outside in itertools.pairwise(widths):
            found += [nn.Conv1d(inside, outside, 1), nn.BatchNorm1d(outside), nn.ReLU(inplace=True)]
        return found

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        turn = self.turned(self.turn(points).max(dim=-1).values).view(-1, 3, 3) + torch.eye(3, device=points.device)
        return self.head(self.body(torch.bmm(turn, points)).max(dim=-1)[0])


class BiasedBlock(nn.Module):
    """FlexAttention with a learned bias for each distance, and fewer key heads than query heads."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.kv, self.proj = nn.Linear(width, width), nn.Linear(width, width // 2), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(heads, 2 * window))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: Any) -> torch.Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        y = self.norm_1(x)
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(y).unflatten(-1, (2, self.heads // 4, -1)).permute(2, 0, 3, 1, 4)
        bias, window = self.bias, self.window

        def score(
            score: torch.Tensor, b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor
        ) -> torch.Tensor:
            return score + bias[h, (i - j).clamp(-window, window - 1) + window]

        y = flex_attention(q, k, v, score_mod=score, block_mask=mask, enable_gqa=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class SquaredGelu(torch.autograd.Function):
    """Saves its input alone and computes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x).square()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        inner = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
        slope = inner + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
        return grad * 2 * F.gelu(x) * slope


@torch.library.custom_op("vramcast_lab::gathered_sum", mutates_args=())
def gathered_sum(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What arrives at each node: rows of `x` from `source`, added up by `target`."""
    return torch.zeros_like(x).index_add_(0, target, x[source])


@gathered_sum.register_fake
def _(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _save_edges(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _gathered_sum_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    source, target = ctx.saved_tensors
    return gathered_sum(grad.contiguous(), target, source), None, None


gathered_sum.register_autograd(_gathered_sum_backward, setup_context=_save_edges)


class GraphNet(nn.Module):
    """Messages along edges: one layer by the op above, one by index_add, one by scatter_reduce."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.inside = nn.Linear(64, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.edge, self.head = nn.Linear(2 * width, width), nn.Linear(width, 32)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        x = F.relu(self.inside(x))
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            if number == 0:
                arrived = gathered_sum(x, source, target)
            elif number == 1:
                messages = F.silu(self.edge(torch.cat([x[source], x[target]], dim=-1)))
                arrived = torch.zeros_like(x).index_add(0, target, messages)
            else:
                index = target[:, None].expand(-1, x.size(1))
                arrived = torch.zeros_like(x).scatter_reduce(0, index, x[source], "amax", include_self=False)
            x = x + F.relu(norm(layer(torch.cat([x, arrived], dim=-1))))
        return self.head(x)
