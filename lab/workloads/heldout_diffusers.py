"""Held-out workloads: diffusion transformers, video networks, control branches and autoencoders from diffusers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


def _flow(clean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noisy latents, the velocity to predict, and the time of each sample in [0, 1)."""
    noise = torch.randn_like(clean)
    time = torch.rand(clean.shape[0], device=clean.device, dtype=clean.dtype)
    shape = (-1,) + (1,) * (clean.dim() - 1)
    return torch.lerp(clean, noise, time.view(shape)), noise - clean, time


def pixart(
    *, batch: int = 8, latent: int = 64, layers: int = 14, precision: str = "fp16", optimizer: str = "adamw",
    checkpointing: bool = False, style: str = "function",
) -> Step:  # fmt: skip
    """PixArt-alpha at half its depth: self- and cross-attention, one adaptive norm for all blocks."""
    from diffusers import PixArtTransformer2DModel

    with torch.device("cuda"):
        model = PixArtTransformer2DModel(
            num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=layers,
            cross_attention_dim=1152, caption_channels=4096, sample_size=latent, patch_size=2,
            use_additional_conditions=False,
        )  # fmt: skip
    model = model.to("cuda").train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    mask = torch.ones(batch, 120)
    mask[:, 90:] = 0
    data = {"latents": torch.randn(batch, 4, latent, latent), "text": torch.randn(batch, 120, 4096), "mask": mask}

    def forward(model: nn.Module, batch: Batch) -> Any:
        noisy, velocity, time = _flow(batch["latents"])
        predicted = model(
            noisy, encoder_hidden_states=batch["text"], encoder_attention_mask=batch["mask"], timestep=time * 1000,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None}, return_dict=False,
        )[0]  # fmt: skip
        return F.mse_loss(predicted.chunk(2, dim=1)[0].float(), velocity)

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def wan_video(
    *, batch: int = 1, frames: int = 9, height: int = 40, width: int = 56, layers: int = 8, precision: str = "bf16",
    optimizer: str = "adamw8bit", checkpointing: bool = False, style: str = "loop",
) -> Step:  # fmt: skip
    """A shallow Wan 1.3B: rotary space-time attention over a long sequence."""
    from diffusers import WanTransformer3DModel

    with torch.device("cuda"):
        model = WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=12, attention_head_dim=128, in_channels=16, out_channels=16,
            text_dim=4096, freq_dim=256, ffn_dim=8960, num_layers=layers,
        )  # fmt: skip
    model = model.to("cuda").train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    data = {"latents": torch.randn(batch, 16, frames, height, width), "text": torch.randn(batch, 226, 4096)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        noisy, velocity, time = _flow(batch["latents"])
        predicted = model(noisy, timestep=time * 1000, encoder_hidden_states=batch["text"], return_dict=False)[0]
        return F.mse_loss(predicted.float(), velocity), predicted

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def ltx_video(
    *, batch: int = 2, frames: int = 7, height: int = 14, width: int = 22, layers: int = 12, precision: str = "fp32",
    optimizer: str = "adamw-fused", style: str = "function", clip: float = 1.0,
) -> Step:  # fmt: skip
    """LTX-Video at less than half its depth, in pure bf16: tokens of a strongly compressed video."""
    from diffusers import LTXVideoTransformer3DModel

    with torch.device("cuda"):
        model = LTXVideoTransformer3DModel(
            in_channels=128, out_channels=128, num_attention_heads=32, attention_head_dim=64,
            cross_attention_dim=2048, num_layers=layers, caption_channels=4096,
        )  # fmt: skip
    model = model.to("cuda", torch.bfloat16).train()
    tokens = frames * height * width
    data = {
        "latents": torch.randn(batch, tokens, 128).bfloat16(), "text": torch.randn(batch, 128, 4096).bfloat16(),
        "mask": torch.ones(batch, 128),
    }  # fmt: skip

    def forward(model: nn.Module, batch: Batch) -> Any:
        noisy, velocity, time = _flow(batch["latents"])
        predicted = model(
            hidden_states=noisy, encoder_hidden_states=batch["text"], timestep=(time * 1000)[:, None],
            encoder_attention_mask=batch["mask"], num_frames=frames, height=height, width=width, return_dict=False,
        )[0]  # fmt: skip
        return (predicted.float() - velocity.float()).square().mean()

    return train(
        model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style,
        clip=clip,
    )  # fmt: skip


def unet3d(
    *, batch: int = 1, frames: int = 10, latent: int = 32, channels: tuple[int, ...] = (192, 384, 640, 640),
    precision: str = "fp16", optimizer: str = "adamw", style: str = "loop",
) -> Step:  # fmt: skip
    """The text-to-video U-Net: spatial and temporal convolutions and attention in turn."""
    from diffusers import UNet3DConditionModel

    with torch.device("cuda"):
        model = UNet3DConditionModel(
            sample_size=latent, block_out_channels=tuple(channels), cross_attention_dim=1024, attention_head_dim=64
        )
    model = model.to("cuda").train()
    data = {"latents": torch.randn(batch, 4, frames, latent, latent), "text": torch.randn(batch, 77, 1024)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        noisy, velocity, time = _flow(batch["latents"])
        predicted = model(noisy, time * 1000, batch["text"]).sample
        return F.mse_loss(predicted.float(), velocity), predicted

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def _small_unet() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=64, in_channels=4, out_channels=4, layers_per_block=2, cross_attention_dim=768,
        attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280),
    )  # fmt: skip


def controlnet(
    *, batch: int = 4, latent: int = 56, precision: str = "fp16", optimizer: str = "adamw", style: str = "function"
) -> Step:
    """A control branch trained against a frozen fp16 U-Net, as the reference script does it."""
    from diffusers import ControlNetModel

    with torch.device("cuda"):
        unet = _small_unet()
    unet = unet.to("cuda", torch.float16).requires_grad_(False)
    model = ControlNetModel.from_unet(unet.float()).to("cuda").train()
    unet.half()
    data = {
        "latents": torch.randn(batch, 4, latent, latent), "text": torch.randn(batch, 77, 768),
        "condition": torch.rand(batch, 3, 8 * latent, 8 * latent),
    }  # fmt: skip

    def forward(model: nn.Module, batch: Batch) -> Any:
        noisy, velocity, time = _flow(batch["latents"])
        down, middle = model(
            noisy, time * 1000, encoder_hidden_states=batch["text"], controlnet_cond=batch["condition"],
            return_dict=False,
        )  # fmt: skip
        predicted = unet(
            noisy.half(), time * 1000, encoder_hidden_states=batch["text"].half(),
            down_block_additional_residuals=[x.half() for x in down],
            mid_block_additional_residual=middle.half(), return_dict=False,
        )[0]  # fmt: skip
        return F.mse_loss(predicted.float(), velocity)

    return train(
        model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style, clip=1.0
    )


def lora_unet(
    *, batch: int = 6, latent: int = 64, rank: int = 16, precision: str = "bf16", optimizer: str = "adamw",
    checkpointing: bool = False, accumulate: int = 2,
) -> Step:  # fmt: skip
    """Adapters on the attention of a frozen bf16 U-Net, with gradient accumulation."""
    from peft import LoraConfig

    with torch.device("cuda"):
        model = _small_unet()
    model = model.to("cuda", torch.bfloat16).requires_grad_(False)
    names = ["to_k", "to_q", "to_v", "to_out.0"]
    model.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=names, init_lora_weights="gaussian"))
    model.train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.data = p.data.float()
    data = {"latents": torch.randn(batch, 4, latent, latent), "text": torch.randn(batch, 77, 768).bfloat16()}

    def forward(model: nn.Module, batch: Batch) -> Any:
        noisy, velocity, time = _flow(batch["latents"])
        predicted = model(noisy, time * 1000, batch["text"], return_dict=False)[0]
        return F.mse_loss(predicted.float(), velocity)

    return train(model, data, forward, make_optimizer(optimizer, trained), precision=precision, accumulate=accumulate)


def vq_autoencoder(
    *, batch: int = 8, size: int = 160, precision: str = "fp32", optimizer: str = "adam-amsgrad", style: str = "loop"
) -> Step:
    """VQ-VAE: nearest code by distance, a straight-through gradient."""
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(96, 192, 384), layers_per_block=2, latent_channels=4, num_vq_embeddings=4096,
        vq_embed_dim=4, norm_num_groups=32, down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
    )  # fmt: skip
    model = model.to("cuda").train()

    def forward(model: Any, batch: Batch) -> Any:
        latents = model.encode(batch["images"]).latents
        decoded = model.decode(latents, return_dict=False)
        restored, commitment = decoded[0], decoded[1]
        return F.mse_loss(restored, batch["images"]) + commitment.mean(), restored

    return train(
        model, {"images": torch.randn(batch, 3, size, size)}, forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style=style,
    )  # fmt: skip


def temporal_decoder(
    *, batch: int = 1, frames: int = 6, latent: int = 24, precision: str = "bf16", optimizer: str = "sgd-momentum",
    style: str = "function",
) -> Step:  # fmt: skip
    """The video decoder of Stable Video Diffusion trained alone: its encoder is frozen and unused."""
    from diffusers import AutoencoderKLTemporalDecoder

    model = AutoencoderKLTemporalDecoder(
        block_out_channels=(128, 256, 384, 384), layers_per_block=2, latent_channels=4, sample_size=8 * latent,
        down_block_types=("DownEncoderBlock2D",) * 4,
    )  # fmt: skip
    model = model.to("cuda").train()
    model.encoder.requires_grad_(False)
    count = batch * frames
    data = {"latents": torch.randn(count, 4, latent, latent), "video": torch.randn(count, 3, 8 * latent, 8 * latent)}

    def forward(model: Any, batch: Batch) -> Any:
        restored = model.decode(batch["latents"], num_frames=frames).sample
        return F.l1_loss(restored.float(), batch["video"])

    trained = [p for p in model.parameters() if p.requires_grad]
    return train(model, data, forward, make_optimizer(optimizer, trained), precision=precision, style=style)


def sample_sequence_unet(
    *, batch: int = 16, length: int = 65536, precision: str = "fp32", optimizer: str = "nadam", style: str = "loop"
) -> Step:
    """Dance Diffusion's one-dimensional U-Net on raw audio."""
    from diffusers import UNet1DModel

    model = UNet1DModel(
        sample_size=length, in_channels=2, out_channels=2, extra_in_channels=16, time_embedding_dim=16,
        block_out_channels=(128, 128, 256, 256, 512, 512), use_timestep_embedding=False,
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "DownBlock1D", "DownBlock1D", "AttnDownBlock1D",
                          "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "AttnUpBlock1D", "UpBlock1D", "UpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
    )  # fmt: skip
    model = model.to("cuda").train()

    def forward(model: nn.Module, batch: Batch) -> Any:
        noisy, velocity, time = _flow(batch["sound"])
        predicted = model(noisy, time).sample
        return F.mse_loss(predicted, velocity), predicted

    return train(
        model, {"sound": torch.randn(batch, 2, length)}, forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style=style,
    )  # fmt: skip
