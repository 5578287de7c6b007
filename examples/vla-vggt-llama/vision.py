"""The tower of VGGT-1B (Wang et al., 2025): DINOv2 ViT-L/14 for each image, then 24 pairs of attention blocks.

In each pair the first block attends inside one image and the second over all images of a scene. Written from the
paper, with the parameter names of the published checkpoint's `aggregator`. The heads for cameras, depth, points and
tracks are left out: a policy does not call them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, HEADS, DEPTH, PATCH, REGISTERS = 1024, 16, 24, 14, 4
HEAD = WIDTH // HEADS
Rotation = tuple[Tensor, Tensor]
"""Cosines and sines for every token, (tokens, HEAD) each."""


def rotation(rows: Tensor, columns: Tensor, base: float = 100.0) -> Rotation:
    """Two-dimensional rotary embedding: half of a head turns with the row, half with the column."""
    rate = base ** (-torch.arange(0, HEAD // 2, 2, device=rows.device) / (HEAD // 2))
    angles = [place[:, None] * rate for place in (rows, columns)]
    angle = torch.cat([torch.cat([a, a], dim=1) for a in angles], dim=1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    cos, sin = turn
    a, b, c, d = x.chunk(4, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-b, a, -d, c], dim=-1) * sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, normalise: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.q_norm = nn.LayerNorm(HEAD) if normalise else nn.Identity()
        self.k_norm = nn.LayerNorm(HEAD) if normalise else nn.Identity()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, turn: Rotation | None) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(batch, tokens, WIDTH))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class LayerScale(nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((WIDTH,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, scale: float, eps: float, normalise: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=eps)
        self.attn = Attention(normalise)
        self.ls1 = LayerScale(scale)
        self.norm2 = nn.LayerNorm(WIDTH, eps=eps)
        self.mlp = Mlp()
        self.ls2 = LayerScale(scale)

    def forward(self, x: Tensor, turn: Rotation | None = None) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), turn))
        return x + self.ls2(self.mlp(self.norm2(x)))


def run(block: Block, x: Tensor, turn: Rotation | None = None) -> Tensor:
    """A block; in training it is checkpointed."""
    if block.training:
        return checkpoint(block, x, turn, use_reentrant=False)
    return block(x, turn)


class PatchEmbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, kernel_size=PATCH, stride=PATCH)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class DinoV2(nn.Module):
    """ViT-L/14 with four registers: images (n, 3, side, side) → patch tokens (n, patches, width)."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.zeros(1, (side // PATCH) ** 2 + 1, WIDTH))
        self.register_tokens = nn.Parameter(torch.zeros(1, REGISTERS, WIDTH))
        self.mask_token = nn.Parameter(torch.zeros(1, WIDTH), requires_grad=False)
        self.patch_embed = PatchEmbed()
        self.blocks = nn.ModuleList([Block(1.0, 1e-6, normalise=False) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        n = images.shape[0]
        x = torch.cat((self.cls_token.expand(n, -1, -1), self.patch_embed(images)), dim=1) + self.pos_embed
        x = torch.cat((x[:, :1], self.register_tokens.expand(n, -1, -1), x[:, 1:]), dim=1)
        for block in self.blocks:
            x = run(block, x)
        return self.norm(x)[:, 1 + REGISTERS :]


class Tower(nn.Module):
    """Scenes (batch, views, 3, side, side) in [0, 1] → tokens (batch, views, tokens, 2 × width)."""

    def __init__(self, side: int = 518) -> None:
        super().__init__()
        if side % PATCH:
            raise ValueError(f"images must be a multiple of {PATCH} wide, not {side}")
        self.camera_token = nn.Parameter(1e-6 * torch.randn(1, 2, 1, WIDTH))
        self.register_token = nn.Parameter(1e-6 * torch.randn(1, 2, REGISTERS, WIDTH))
        self.patch_embed = DinoV2(side)
        self.frame_blocks = nn.ModuleList([Block(0.01, 1e-5, normalise=True) for _ in range(DEPTH)])
        self.global_blocks = nn.ModuleList([Block(0.01, 1e-5, normalise=True) for _ in range(DEPTH)])
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        self.register_buffer("mean", mean.view(1, 1, 3, 1, 1), persistent=False)
        self.register_buffer("std", std.view(1, 1, 3, 1, 1), persistent=False)

    def special_tokens(self, batch: int, views: int) -> Tensor:
        """The first view's own camera and register tokens, and those that the other views share."""
        both = torch.cat((self.camera_token, self.register_token), dim=2)
        first, others = both[:, :1].expand(batch, -1, -1, -1), both[:, 1:].expand(batch, views - 1, -1, -1)
        return torch.cat((first, others), dim=1).flatten(0, 1)

    def rotation(self, images: Tensor) -> Rotation:
        """Places of the patches, counted from 1; camera and register tokens are at 0."""
        height, width = (size // PATCH for size in images.shape[-2:])
        places = torch.cartesian_prod(
            torch.arange(1, height + 1, device=images.device), torch.arange(1, width + 1, device=images.device)
        )
        places = F.pad(places, (0, 0, 1 + REGISTERS, 0))
        return rotation(places[:, 0], places[:, 1])

    def forward(self, images: Tensor) -> Tensor:
        batch, views = images.shape[:2]
        images = ((images - self.mean) / self.std).flatten(0, 1)
        tokens = torch.cat([self.special_tokens(batch, views), self.patch_embed(images)], dim=1)
        count = tokens.shape[1]
        turn = self.rotation(images)
        turn_all: Rotation = (turn[0].repeat(views, 1), turn[1].repeat(views, 1))
        for frame_block, global_block in zip(self.frame_blocks, self.global_blocks, strict=True):
            inside = run(frame_block, tokens.view(batch * views, count, WIDTH), turn)
            tokens = run(global_block, inside.view(batch, views * count, WIDTH), turn_all)
        pair = [inside.view(batch, views, count, WIDTH), tokens.view(batch, views, count, WIDTH)]
        return torch.cat(pair, dim=-1)
