"""Video networks: 3-D convolutions and space-time transformers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


def torchvision_video(
    *, name: str = "r3d_18", batch: int = 14, frames: int = 16, size: int = 112, precision: str = "fp32",
    optimizer: str = "sgd-momentum", layout: str = "contiguous",
) -> Step:  # fmt: skip
    import torchvision

    model = torchvision.models.get_model(name, weights=None).cuda().train()
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last_3d)
    data = {"clips": torch.randn(batch, 3, frames, size, size), "labels": torch.randint(0, 400, (batch,))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        clips = batch["clips"]
        if layout == "channels_last":
            clips = clips.contiguous(memory_format=torch.channels_last_3d)
        return F.cross_entropy(model(clips), batch["labels"])

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


def _classify(model: nn.Module, batch: Batch) -> Any:
    outputs = model(**batch)
    return outputs.loss, outputs


def video_mae(
    *, batch: int = 6, frames: int = 16, size: int = 224, precision: str = "bf16", optimizer: str = "adamw",
    style: str = "function",
) -> Step:  # fmt: skip
    """VideoMAE-base fine-tuned as a classifier."""
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    model = VideoMAEForVideoClassification(VideoMAEConfig(num_frames=frames, image_size=size, num_labels=400))
    model = model.cuda().train()
    data = {"pixel_values": torch.randn(batch, frames, 3, size, size), "labels": torch.randint(0, 400, (batch,))}
    return train(
        model, data, _classify, make_optimizer(optimizer, model.parameters()), precision=precision, style=style
    )


def timesformer(
    *, batch: int = 4, frames: int = 8, size: int = 224, precision: str = "fp32", optimizer: str = "sgd-momentum",
    style: str = "loop",
) -> Step:  # fmt: skip
    """TimeSformer with divided space-time attention."""
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    config = TimesformerConfig(num_frames=frames, image_size=size, num_labels=400)
    model = TimesformerForVideoClassification(config).cuda().train()
    data = {"pixel_values": torch.randn(batch, frames, 3, size, size), "labels": torch.randint(0, 400, (batch,))}
    return train(
        model, data, _classify, make_optimizer(optimizer, model.parameters()), precision=precision, style=style
    )


def cogvideox_small(
    *, batch: int = 1, frames: int = 9, height: int = 30, width: int = 44, layers: int = 12, heads: int = 24,
    precision: str = "bf16", optimizer: str = "adamw-fused", checkpointing: bool = False, style: str = "function",
) -> Step:  # fmt: skip
    """A shallow CogVideoX-2b: learned positions instead of rotary ones, fp32 weights under autocast."""
    from diffusers import CogVideoXTransformer3DModel

    with torch.device("cuda"):
        model = CogVideoXTransformer3DModel(
            num_attention_heads=heads, attention_head_dim=64, in_channels=16, out_channels=16, num_layers=layers,
            time_embed_dim=512, text_embed_dim=4096, sample_width=width, sample_height=height,
            sample_frames=(frames - 1) * 4 + 1, patch_size=2, temporal_compression_ratio=4, max_text_seq_length=226,
        )  # fmt: skip
    model = model.to("cuda").train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    data = {"latents": torch.randn(batch, frames, 16, height, width), "text": torch.randn(batch, 226, 4096)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        latents = batch["latents"]
        noise = torch.randn_like(latents)
        steps = torch.randint(0, 1000, (latents.shape[0],), device="cuda")
        predicted = model(
            hidden_states=latents + noise, encoder_hidden_states=batch["text"], timestep=steps, return_dict=False
        )[0]
        return F.mse_loss(predicted.float(), noise)

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)
