"""The network: seven stages down and up a pyramid of resolutions, then reconstruction at full resolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vrt.alignment import GuidedDeformableConv, align
from vrt.attention import Extent, GatedMlp, Group, Recompute
from vrt.flow import SpyNet, four_neighbours

PYRAMID = [("none", 1), ("down", 2), ("down", 4), ("down", 8), ("up", 4), ("up", 2), ("up", 1)]
"""How each of the first seven stages changes the resolution, and by what it is divided then."""
STAGES = len(PYRAMID)
MUTUAL_SHARE = 0.75
"""Of a stage's blocks, those with mutual attention."""
MAX_REACH = 10
"""Pixels that a deformable convolution's offset may differ from the flow, at full resolution."""


class ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 4, 1)


class ChannelsFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 4, 1, 2, 3)


class Fold(nn.Module):
    """Squares of four places become one with four times the channels: (b, c, d, h, w) → (b, d, h/2, w/2, 4c)."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, d, h, w = x.shape
        x = x.reshape(b, c, d, h // 2, 2, w // 2, 2)
        return x.permute(0, 2, 3, 5, 6, 4, 1).reshape(b, d, h // 2, w // 2, 4 * c)


class Unfold(nn.Module):
    """The reverse: (b, c, d, h, w) → (b, d, 2h, 2w, c/4)."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, d, h, w = x.shape
        x = x.reshape(b, 2, 2, c // 4, d, h, w)
        return x.permute(0, 4, 5, 2, 6, 1, 3).reshape(b, d, 2 * h, 2 * w, c // 4)


def resampling(kind: str, before: int, width: int) -> nn.Sequential:
    if kind == "none":
        return nn.Sequential(ChannelsLast(), nn.LayerNorm(width), ChannelsFirst())
    change, channels = (Fold(), 4 * before) if kind == "down" else (Unfold(), before // 4)
    return nn.Sequential(change, nn.LayerNorm(channels), nn.Linear(channels, width), ChannelsFirst())


def over_channels(layer: nn.Module, x: Tensor) -> Tensor:
    """A linear layer over the channels of (b, c, d, h, w)."""
    return layer(x.transpose(1, 4)).transpose(1, 4)


class Stage(nn.Module):
    """Mutual attention between pairs of frames, self attention over the clip, then parallel warping."""

    def __init__(
        self, before: int, width: int, window: Extent, heads: int, drops: list[float], kind: str, reach: float,
        groups: int, recompute: Recompute,
    ) -> None:  # fmt: skip
        super().__init__()
        mutual = int(len(drops) * MUTUAL_SHARE)
        self.reshape = resampling(kind, before, width)
        self.residual_group1 = Group(width, (2, *window[1:]), heads, True, drops[:mutual], recompute)
        self.linear1 = nn.Linear(width, width)
        # Both groups drop paths at the first rates of the stage, and the second is always checkpointed: so the
        # published code does it.
        self.residual_group2 = Group(width, window, heads, False, drops[: len(drops) - mutual], (True, recompute[1]))
        self.linear2 = nn.Linear(width, width)
        self.pa_deform = GuidedDeformableConv(width, groups, reach)
        self.pa_fuse = GatedMlp(3 * width, 3 * width, width)

    def forward(self, x: Tensor, backward: Tensor, forward: Tensor) -> Tensor:
        x = self.reshape(x)
        x = over_channels(self.linear1, self.residual_group1(x)) + x
        x = over_channels(self.linear2, self.residual_group2(x)) + x
        x = x.transpose(1, 2)
        following, preceding = align(self.pa_deform, x, backward, forward)
        x = self.pa_fuse(torch.cat([x, following, preceding], dim=2).permute(0, 1, 3, 4, 2))
        return x.permute(0, 4, 1, 2, 3)


class Reconstruction(nn.Module):
    """Self attention with a residual around the group."""

    def __init__(self, width: int, window: Extent, heads: int, drops: list[float], recompute: Recompute) -> None:
        super().__init__()
        self.residual_group = Group(width, window, heads, False, drops, recompute)
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + over_channels(self.linear, self.residual_group(x))


class VRT(nn.Module):
    """Restores clips (b, frames, 3, h, w) at their own resolution. Arguments are named as in KAIR's options."""

    def __init__(
        self,
        *,
        window_size: list[int],
        depths: list[int],
        embed_dims: list[int],
        num_heads: list[int],
        indep_reconsts: list[int],
        deformable_groups: int = 16,
        drop_path_rate: float = 0.2,
        use_checkpoint_attn: bool = False,
        use_checkpoint_ffn: bool = False,
        no_checkpoint_attn_blocks: list[int] | tuple[int, ...] = (),
        no_checkpoint_ffn_blocks: list[int] | tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        rates = torch.linspace(0, drop_path_rate, sum(depths)).tolist()
        window: Extent = tuple(window_size)  # type: ignore[assignment]

        def drops(i: int) -> list[float]:
            return rates[sum(depths[:i]) : sum(depths[: i + 1])]

        def recompute(i: int) -> Recompute:
            return (
                use_checkpoint_attn and i not in no_checkpoint_attn_blocks,
                use_checkpoint_ffn and i not in no_checkpoint_ffn_blocks,
            )

        # A frame, and four neighbours of each pixel in the next and the last frame.
        self.conv_first = nn.Conv3d(3 * (1 + 2 * 4), embed_dims[0], kernel_size=(1, 3, 3), padding=(0, 1, 1))
        self.spynet = SpyNet()
        for i, (kind, scale) in enumerate(PYRAMID):
            stage = Stage(
                embed_dims[i - 1], embed_dims[i], window, num_heads[i], drops(i), kind, MAX_REACH / scale,
                deformable_groups, recompute(i),
            )  # fmt: skip
            self.add_module(f"stage{i + 1}", stage)
        entry = nn.Sequential(
            ChannelsLast(),
            nn.LayerNorm(embed_dims[STAGES - 1]),
            nn.Linear(embed_dims[STAGES - 1], embed_dims[STAGES]),
            ChannelsFirst(),
        )
        self.stage8 = nn.ModuleList([entry])
        for i in range(STAGES, len(depths)):
            alone = (1, *window[1:]) if i in indep_reconsts else window
            self.stage8.append(Reconstruction(embed_dims[i], alone, num_heads[i], drops(i), recompute(i)))
        self.norm = nn.LayerNorm(embed_dims[-1])
        self.conv_after_body = nn.Linear(embed_dims[-1], embed_dims[0])
        self.conv_last = nn.Conv3d(embed_dims[0], 3, kernel_size=(1, 3, 3), padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        blurred = x.clone()
        backward, forward = self.flows(x)
        following, preceding = self.neighbours(x, backward[0], forward[0])
        x = torch.cat([x, following, preceding], dim=2)
        x = self.conv_first(x.transpose(1, 2))
        x = x + over_channels(self.conv_after_body, self.features(x, backward, forward))
        x = self.conv_last(x).transpose(1, 2)
        return x + blurred

    def flows(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Flow to the next and to the last frame at four resolutions, each (b, frames - 1, 2, h, w)."""
        b, frames, *image = x.shape
        earlier, later = x[:, :-1].reshape(-1, *image), x[:, 1:].reshape(-1, *image)
        backward = [flow.view(b, frames - 1, *flow.shape[1:]) for flow in self.spynet(earlier, later)]
        forward = [flow.view(b, frames - 1, *flow.shape[1:]) for flow in self.spynet(later, earlier)]
        return backward, forward

    @staticmethod
    def neighbours(x: Tensor, backward: Tensor, forward: Tensor) -> tuple[Tensor, Tensor]:
        frames = x.shape[1]
        following = [torch.zeros_like(x[:, -1]).repeat(1, 4, 1, 1)]
        for i in range(frames - 1, 0, -1):
            following.insert(0, four_neighbours(x[:, i], backward[:, i - 1]))
        preceding = [torch.zeros_like(x[:, 0]).repeat(1, 4, 1, 1)]
        for i in range(frames - 1):
            preceding.append(four_neighbours(x[:, i], forward[:, i]))
        return torch.stack(following, dim=1), torch.stack(preceding, dim=1)

    def features(self, x: Tensor, backward: list[Tensor], forward: list[Tensor]) -> Tensor:
        x1 = self.stage1(x, backward[0], forward[0])
        x2 = self.stage2(x1, backward[1], forward[1])
        x3 = self.stage3(x2, backward[2], forward[2])
        x4 = self.stage4(x3, backward[3], forward[3])
        x = self.stage5(x4, backward[2], forward[2])
        x = self.stage6(x + x3, backward[1], forward[1])
        x = self.stage7(x + x2, backward[0], forward[0])
        x = x + x1
        for layer in self.stage8:
            x = layer(x)
        return self.norm(x.permute(0, 2, 3, 4, 1)).permute(0, 4, 1, 2, 3)
