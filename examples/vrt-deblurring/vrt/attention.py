"""Attention inside windows of a clip, and the gated feed-forward layer after it. Features are (b, d, h, w, c)."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Extent = tuple[int, int, int]
"""Frames, height, width."""
Recompute = tuple[bool, bool]
"""Whether the attention and the feed-forward layer of a block are checkpointed."""


def fit_window(extent: Extent, window: Extent, shift: Extent) -> tuple[Extent, Extent]:
    """Along an axis that is not longer than the window, the window is the axis and is not shifted."""
    short = [size <= side for size, side in zip(extent, window, strict=True)]
    fitted = tuple(size if s else side for s, size, side in zip(short, extent, window, strict=True))
    return fitted, tuple(0 if s else step for s, step in zip(short, shift, strict=True))  # type: ignore[return-value]


def to_windows(x: Tensor, window: Extent) -> Tensor:
    """(b, d, h, w, c) → (windows, places in a window, c)."""
    b, d, h, w, c = x.shape
    wd, wh, ww = window
    x = x.view(b, d // wd, wd, h // wh, wh, w // ww, ww, c)
    return x.permute(0, 1, 3, 5, 2, 4, 6, 7).reshape(-1, wd * wh * ww, c)


def from_windows(windows: Tensor, window: Extent, batch: int, extent: Extent) -> Tensor:
    """The reverse of `to_windows`."""
    (d, h, w), (wd, wh, ww) = extent, window
    x = windows.view(batch, d // wd, h // wh, w // ww, wd, wh, ww, -1)
    return x.permute(0, 1, 4, 2, 5, 3, 6, 7).reshape(batch, d, h, w, -1)


@lru_cache
def shift_mask(extent: Extent, window: Extent, shift: Extent, device: torch.device) -> Tensor:
    """-100 between places of one shifted window that were not neighbours before the shift; kept for the whole run."""
    region = torch.zeros((1, *extent, 1), device=device)
    parts = [(slice(-side), slice(-side, -step), slice(-step, None)) for side, step in zip(window, shift, strict=True)]
    for number, (d, h, w) in enumerate(product(*parts)):
        region[:, d, h, w] = number
    regions = to_windows(region, window).squeeze(-1)
    apart = regions.unsqueeze(1) - regions.unsqueeze(2)
    apart = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
    return apart  # noqa: RET504 (the distances are freed before the other locals)


def relative_places(window: Extent) -> Tensor:
    """For each pair of places in a window, the row of the bias table that belongs to their distance."""
    places = torch.cartesian_prod(*(torch.arange(side) for side in window))
    distance = places[:, None] - places[None] + torch.tensor(window) - 1
    _, wh, ww = window
    return (distance * torch.tensor([(2 * wh - 1) * (2 * ww - 1), 2 * ww - 1, 1])).sum(-1)


def sine_places(height: int, width: int, channels: int) -> Tensor:
    """Sines and cosines of the row, then of the column: (1, height × width, channels)."""
    half = channels // 2
    wavelength = 10000 ** (2 * (torch.arange(half, dtype=torch.float32) // 2) / half)

    def encode(size: int) -> Tensor:
        angle = (torch.arange(1, size + 1) / (size + 1e-6) * 2 * math.pi)[:, None] / wavelength
        return torch.stack((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=2).flatten(1)

    rows = encode(height)[:, None].expand(height, width, half)
    columns = encode(width)[None].expand(height, width, half)
    return torch.cat((rows, columns), dim=2).reshape(1, height * width, channels)


class DropPath(nn.Module):
    """Leave a residual branch out for some samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.keep = 1 - rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        chosen = (self.keep + torch.rand(x.shape[0], 1, 1, 1, 1, dtype=x.dtype, device=x.device)).floor_()
        return x.div(self.keep) * chosen


class GatedMlp(nn.Module):
    """GEGLU: one half of the hidden features gates the other."""

    def __init__(self, width: int, hidden: int, out: int) -> None:
        super().__init__()
        self.fc11 = nn.Linear(width, hidden)
        self.fc12 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc11(x)) * self.fc12(x))


class WindowAttention(nn.Module):
    """Self attention in a window; with `mutual`, each of its two frames also looks only at the other one."""

    def __init__(self, width: int, window: Extent, heads: int, mutual: bool) -> None:
        super().__init__()
        self.heads, self.scale, self.mutual = heads, (width // heads) ** -0.5, mutual
        distances = math.prod(2 * side - 1 for side in window)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(distances, heads))
        self.register_buffer("relative_position_index", relative_places(window))
        self.qkv_self = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(2 * width if mutual else width, width)
        if mutual:
            self.register_buffer("position_bias", sine_places(*window[1:], width))
            self.qkv_mut = nn.Linear(width, 3 * width)
        nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def split_heads(self, qkv: Tensor) -> Tensor:
        """(windows, n, 3c) → (3, windows, heads, n, c per head)."""
        windows, n, _ = qkv.shape
        return qkv.reshape(windows, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        whole = self.split_heads(self.qkv_self(x))
        seen = self.attend(whole[0], whole[1], whole[2], mask, biased=True)
        if self.mutual:
            pair = self.split_heads(self.qkv_mut(x + self.position_bias.repeat(1, 2, 1)))
            (q1, q2), (k1, k2), (v1, v2) = (pair[i].chunk(2, dim=2) for i in range(3))
            first = self.attend(q2, k1, v1, mask)
            second = self.attend(q1, k2, v2, mask)
            seen = torch.cat([torch.cat([first, second], dim=1), seen], dim=2)
        return self.proj(seen)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, biased: bool = False) -> Tensor:
        windows, heads, n, depth = q.shape
        score = (q * self.scale) @ k.transpose(-2, -1)
        if biased:
            rows = self.relative_position_index[:n, :n].reshape(-1)
            bias = self.relative_position_bias_table[rows].reshape(n, n, -1)
            score = score + bias.permute(2, 0, 1).unsqueeze(0)
        if mask is not None:
            score = score.view(-1, mask.shape[0], heads, n, n) + mask[:, :n, :n].unsqueeze(1).unsqueeze(0)
            score = score.view(windows, heads, n, n)
        score = torch.softmax(score, dim=-1)
        return (score @ v).transpose(1, 2).reshape(windows, n, heads * depth)


class Block(nn.Module):
    """Window attention and a gated feed-forward layer, each with a residual and each checkpointed or not."""

    def __init__(
        self,
        width: int,
        window: Extent,
        shift: Extent,
        heads: int,
        mutual: bool,
        drop: float,
        recompute: Recompute,
    ) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.checkpoint_attn, self.checkpoint_ffn = recompute
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, window, heads, mutual)
        self.drop_path = DropPath(drop) if drop > 0 else nn.Identity()
        self.norm2 = nn.LayerNorm(width)
        self.mlp = GatedMlp(width, 2 * width, width)

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, *extent, _ = x.shape
        window, shift = fit_window(extent, self.window, self.shift)
        x = self.norm1(x)
        pad_d, pad_h, pad_w = (-size % side for size, side in zip(extent, window, strict=True))
        x = F.pad(x, (0, 0, 0, pad_w, 0, pad_h, 0, pad_d))
        padded = x.shape[1:4]
        moved = torch.roll(x, [-step for step in shift], dims=(1, 2, 3)) if any(shift) else x
        windows = to_windows(moved, window)
        seen = self.attn(windows, mask if any(shift) else None)
        moved = from_windows(seen, window, batch, padded)
        x = torch.roll(moved, shift, dims=(1, 2, 3)) if any(shift) else moved
        if pad_d or pad_h or pad_w:
            d, h, w = extent
            x = x[:, :d, :h, :w]
        return self.drop_path(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.drop_path(self.mlp(self.norm2(x)))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.checkpoint_attn and torch.is_grad_enabled():
            x = x + checkpoint(self.attend, x, mask, use_reentrant=True)
        else:
            x = x + self.attend(x, mask)
        if self.checkpoint_ffn and torch.is_grad_enabled():
            return x + checkpoint(self.feed_forward, x, use_reentrant=True)
        return x + self.feed_forward(x)


class Group(nn.Module):
    """Blocks of one window size; every second one has its windows shifted by half. Features are (b, c, d, h, w)."""

    def __init__(
        self, width: int, window: Extent, heads: int, mutual: bool, drops: list[float], recompute: Recompute
    ) -> None:
        super().__init__()
        self.window, self.shift = window, tuple(side // 2 for side in window)
        self.blocks = nn.ModuleList(
            [
                Block(width, window, self.shift if i % 2 else (0, 0, 0), heads, mutual, drop, recompute)
                for i, drop in enumerate(drops)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        extent = x.shape[2:]
        window, shift = fit_window(extent, self.window, self.shift)
        padded = tuple(-(-size // side) * side for size, side in zip(extent, window, strict=True))
        mask = shift_mask(padded, window, shift, x.device)
        x = x.permute(0, 2, 3, 4, 1)
        for block in self.blocks:
            x = block(x, mask)
        return x.permute(0, 4, 1, 2, 3)
