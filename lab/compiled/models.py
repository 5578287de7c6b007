"""Small models of the usual kinds, written as people write them. None needs weights or data from outside."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A GPT-2 block."""

    def __init__(self, width: int, heads: int, manual_attention: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.manual_attention, self.dropout = heads, manual_attention, dropout
        self.ln_1 = nn.LayerNorm(width, bias=False)
        self.attn = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.ln_2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.attn(self.ln_1(x)).split(width, dim=2))
        if self.manual_attention:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
            mask = torch.tril(torch.ones(length, length, device=x.device)).view(1, 1, length, length)
            scores = F.softmax(scores.masked_fill(mask == 0, float("-inf")), dim=-1)
            y = F.dropout(scores, self.dropout, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
            )
        x = x + F.dropout(self.proj(y.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.ln_2(x)))), self.dropout, self.training)


class GPT(nn.Module):
    """nanoGPT's shape: tied embeddings, no biases, the loss inside the model."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, vocab: int = 50304, length: int = 1024,
        manual_attention: bool = False, dropout: float = 0.0, checkpointed: bool = False, prints: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dropout, self.checkpointed, self.prints = dropout, checkpointed, prints
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, manual_attention, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        x = F.dropout(self.wte(ids) + self.wpe(positions), self.dropout, self.training)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        if self.prints:  # not compiled: the graph is cut here
            print("logits of", tuple(x.shape))
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


class ConvBlock(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU(),
        )  # fmt: skip
        self.skip = nn.Conv2d(inside, outside, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + self.skip(x)


class UNet(nn.Module):
    """Four levels with skip connections, as in segmentation and small diffusion models."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512), channels: int = 3) -> None:
        super().__init__()
        self.down = nn.ModuleList(ConvBlock(a, b) for a, b in zip((channels, *widths[:-1]), widths, strict=True))
        back = list(reversed(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in itertools.pairwise(back))
        self.merge = nn.ModuleList(ConvBlock(2 * b, b) for b in back[1:])
        self.out = nn.Conv2d(widths[0], channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for level, block in enumerate(self.down):
            x = block(x)
            if level < len(self.down) - 1:
                kept.append(x)
                x = F.max_pool2d(x, 2)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), kept.pop()], dim=1))
        return self.out(x)


class DiTBlock(nn.Module):
    """A diffusion transformer's block: attention and MLP, scaled and shifted by the time."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm_2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        a, b, g, d, e, h = self.modulation(c)[:, None].chunk(6, dim=-1)
        batch, length, width = x.shape
        y = self.norm_1(x) * (1 + b) + a
        q, k, v = self.qkv(y).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + g * self.proj(y)
        return x + h * self.mlp(self.norm_2(x) * (1 + e) + d)


class DiT(nn.Module):
    def __init__(self, layers: int = 8, width: int = 768, heads: int = 12, patch: int = 2, channels: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(channels, width, patch, stride=patch)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(layers))
        self.out = nn.Linear(width, patch * patch * channels)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        half = torch.exp(-torch.arange(128, device=t.device) * (9.21 / 128))
        angles = t[:, None].float() * half[None]
        c = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1).to(self.out.weight.dtype))
        x = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, c)
        return self.out(x)


def causal(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    config.use_cache = False
    return AutoModelForCausalLM.from_config(config)


def llama(**options: Any) -> Any:
    from transformers import LlamaConfig

    settings = {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "num_attention_heads": 16,
        "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048, **options,
    }  # fmt: skip
    return causal(LlamaConfig(**settings))


class Attention2d(nn.Module):
    """Attention over the pixels of a feature map."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, width)
        self.qkv, self.proj = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, width, height, wide = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, 3, self.heads, width // self.heads, -1).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(batch, width, height, wide)
        return x + self.proj(y)


class TimedBlock(nn.Module):
    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.time = nn.Linear(time, 2 * outside)
        self.norm = nn.GroupNorm(8, outside)
        self.second = nn.Sequential(nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(outside, outside, 3, padding=1))
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        scale, shift = self.time(F.silu(t))[:, :, None, None].chunk(2, dim=1)
        return self.second(self.norm(self.first(x)) * (1 + scale) + shift) + self.skip(x)


class DiffusionUNet(nn.Module):
    """A U-Net that is told the time and attends at its lower levels, as in pixel diffusion."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256), channels: int = 3, time: int = 256) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.time = nn.Sequential(nn.Linear(64, time), nn.SiLU(), nn.Linear(time, time))
        pairs = list(itertools.pairwise((widths[0], *widths)))
        self.down = nn.ModuleList(TimedBlock(a, b, time) for a, b in pairs)
        self.attend = nn.ModuleList(Attention2d(b) if level else nn.Identity() for level, (_, b) in enumerate(pairs))
        self.shrink = nn.ModuleList(nn.Conv2d(b, b, 3, stride=2, padding=1) for _, b in pairs[:-1])
        self.middle = TimedBlock(widths[-1], widths[-1], time)
        self.up = nn.ModuleList(TimedBlock(2 * b, a, time) for a, b in reversed(pairs))
        self.out = nn.Sequential(nn.GroupNorm(8, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], channels, 3, padding=1))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        angles = t[:, None].float() * torch.exp(-torch.arange(32, device=t.device) * (9.21 / 32))
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1))
        x = self.stem(x)
        kept = []
        for level, (block, attend) in enumerate(zip(self.down, self.attend, strict=True)):
            x = attend(block(x, time))
            kept.append(x)
            if level < len(self.shrink):
                x = self.shrink[level](x)
        x = self.middle(x, time)
        for level, block in enumerate(self.up):
            x = block(torch.cat([x, kept.pop()], dim=1), time)
            if level < len(self.shrink):
                x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.out(x)


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of low rank beside it."""

    def __init__(self, inner: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 2.0 * self.up(self.down(x))


class FlexBlock(nn.Module):
    """Attention as FlexAttention computes it: causal within a window, with the same mask in every layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor, mask: Any) -> torch.Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        batch, length, width = x.shape
        shape = batch, length, 3, self.heads, width // self.heads
        q, k, v = self.qkv(self.norm_1(x)).view(shape).permute(2, 0, 3, 1, 4)
        y = flex_attention(q, k, v, block_mask=mask).transpose(1, 2).reshape(batch, length, width)
        x = x + self.proj(y)
        return x + self.down(F.relu(self.up(self.norm_2(x))).square())


class FlexGPT(nn.Module):
    def __init__(self, layers: int = 4, width: int = 768, heads: int = 6, vocab: int = 50304) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(FlexBlock(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor, mask: Any) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        return F.cross_entropy(self.head(x).float().flatten(0, 1), targets.flatten())
