"""What a Lightning module, KAIR's network and DiffSR's classes look like, without those libraries."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.jobs.tiny import Mixer


class LitClassifier(nn.Module):
    """Lightning calls training_step, which calls the module itself."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.net = Mixer(width, classes=classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        return {"loss": F.cross_entropy(self(x), y)}


class Clip(nn.Module):
    """Clips in, clips out, with KAIR's arguments for checkpointing."""

    def __init__(
        self,
        *,
        upscale: int,
        depths: list[int],
        embed_dims: list[int],
        use_checkpoint_attn: bool = False,
        use_checkpoint_ffn: bool = False,
        no_checkpoint_attn_blocks: list[int] | tuple[int, ...] = (),
        no_checkpoint_ffn_blocks: list[int] | tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        assert upscale == 1
        width = embed_dims[0]
        self.flow = nn.Conv3d(3, width, 1)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv3d(width, width, 3, padding=1), nn.GELU()) for _ in depths])
        self.last = nn.Conv3d(width, 3, 1)
        self.checkpointed = [use_checkpoint_attn and i not in no_checkpoint_attn_blocks for i in range(len(depths))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.flow(x.transpose(1, 2))
        for block, again in zip(self.blocks, self.checkpointed, strict=True):
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return self.last(x).transpose(1, 2)


class UNet2d(nn.Module):
    """As DiffSR's classes: one dict of arguments, channels last."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__()
        width = args["init_features"]
        self.body = nn.Sequential(
            nn.Linear(args["in_channels"], width), nn.GELU(), nn.Linear(width, args["out_channels"])
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(x.permute(0, 3, 1, 2), scale_factor=2)
        return self.body(x.permute(0, 2, 3, 1))
