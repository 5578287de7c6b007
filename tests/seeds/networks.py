"""Small networks with the arguments and the limits of those that the documents train."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Part(nn.Module):
    """Attention over windows of pixels, and a feed-forward layer; each may be computed again."""

    def __init__(self, width: int, again_attn: bool, again_ffn: bool) -> None:
        super().__init__()
        self.qkv, self.attn, self.mlp = nn.Linear(width, 3 * width), _Attention(width), _FeedForward(width)
        self.again_attn, self.again_ffn = again_attn, again_ffn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self._run(lambda y: self.attn(self.qkv(y)), x, self.again_attn)
        return x + self._run(self.mlp, x, self.again_ffn)

    def _run(self, function: object, x: torch.Tensor, again: bool) -> torch.Tensor:
        return checkpoint(function, x, use_reentrant=False) if again else function(x)  # type: ignore[operator]


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv.chunk(3, dim=-1)
        return self.proj((q @ k.transpose(-2, -1)).softmax(-1) @ v)


class _FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class VRT(nn.Module):
    """Stages of such parts over 8 × 8 windows of a clip; smaller crops than a window it cannot take."""

    def __init__(
        self, *, upscale: int = 1, depths: list[int], embed_dims: list[int], spynet_path: str | None = None,
        use_checkpoint_attn: bool = False, use_checkpoint_ffn: bool = False,
        no_checkpoint_attn_blocks: list[int] | tuple[int, ...] = (),
        no_checkpoint_ffn_blocks: list[int] | tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        if spynet_path is not None:
            raise ConnectionError(f"{spynet_path} would be fetched")
        width = embed_dims[0]
        self.conv_first = nn.Linear(3, width)
        for i, depth in enumerate(depths):
            attn = use_checkpoint_attn and i not in no_checkpoint_attn_blocks
            ffn = use_checkpoint_ffn and i not in no_checkpoint_ffn_blocks
            parts = [Part(width, attn, ffn) for _ in range(depth)]
            setattr(self, f"stage{i + 1}", nn.ModuleList(parts) if i else nn.Sequential(*parts))
        self.n_stages = len(depths)
        self.conv_last = nn.Linear(width, 3)

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        batch, frames, channels, height, width = clip.shape
        if min(height, width) < 16:
            raise RuntimeError(f"a crop of {height} × {width} is smaller than two windows of 8 × 8")
        x = clip.permute(0, 1, 3, 4, 2).reshape(batch * frames, height // 8 * (width // 8), 64, channels)
        x = self.conv_first(x)
        for i in range(self.n_stages):
            for part in getattr(self, f"stage{i + 1}"):
                x = part(x)
        x = self.conv_last(x)
        return x.reshape(batch, frames, height, width, channels).permute(0, 1, 4, 2, 3)


class Tower(nn.Module):
    """Cuts images into patches of 14 × 14 and refuses others."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 14, stride=14)
        self.blocks = nn.ModuleList([_FeedForward(width) for _ in range(depth)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.shape[-1] % 14 or images.shape[-2] % 14:
            raise ValueError("height and width must be multiples of the patch, 14")
        x = self.patches(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + block(x)
        return x.mean(1)


class Head(nn.Module):
    def __init__(self, visual: int = 256, language: int = 64, actions: int = 7) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(visual + language, 512), nn.GELU(), nn.Linear(512, actions))

    def forward(self, seen: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([seen, said.mean(1)], dim=-1))
