"""Diffusion models from diffusers' configurations, trained to predict noise."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


def _add_noise(clean: torch.Tensor, steps: torch.Tensor, levels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.randn_like(clean)
    level = levels[steps].view(-1, *[1] * (clean.dim() - 1)).to(clean.dtype)
    return level.sqrt() * clean + (1 - level).sqrt() * noise, noise


def _noise_levels() -> torch.Tensor:
    return torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), dim=0)


def ddpm_unet(
    *, batch: int = 12, size: int = 128, precision: str = "fp32", optimizer: str = "adamw",
    style: str = "function", channels: tuple[int, ...] = (128, 128, 256, 256, 512, 512),
) -> Step:  # fmt: skip
    """The unconditional U-Net of diffusers' DDPM training example."""
    from diffusers import UNet2DModel

    attention_at = len(channels) - 2
    down = ["AttnDownBlock2D" if i == attention_at else "DownBlock2D" for i in range(len(channels))]
    up = ["AttnUpBlock2D" if i == 1 else "UpBlock2D" for i in range(len(channels))]
    model = UNet2DModel(
        sample_size=size, in_channels=3, out_channels=3, layers_per_block=2, block_out_channels=tuple(channels),
        down_block_types=tuple(down), up_block_types=tuple(up),
    )  # fmt: skip
    model = model.to("cuda").train()
    levels = _noise_levels()

    def forward(model: nn.Module, batch: Batch) -> Any:
        clean = batch["images"]
        steps = torch.randint(0, 1000, (clean.shape[0],), device=clean.device)
        noisy, noise = _add_noise(clean, steps, levels)
        predicted = model(noisy, steps).sample
        return F.mse_loss(predicted.float(), noise.float()), predicted

    return train(
        model, {"images": torch.randn(batch, 3, size, size)}, forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style=style, clip=1.0,
    )  # fmt: skip


def _text_conditioned(
    model: nn.Module, batch: int, latent: int, tokens: int, text_width: int, *, extra: dict[str, int] | None = None,
    optimizer: str, **rest: Any,
) -> Step:  # fmt: skip
    levels = _noise_levels()
    data = {"latents": torch.randn(batch, 4, latent, latent), "text": torch.randn(batch, tokens, text_width)}
    for name, width in (extra or {}).items():
        data[name] = torch.randn(batch, width)

    def forward(model: nn.Module, batch: Batch) -> Any:
        clean = batch["latents"]
        steps = torch.randint(0, 1000, (clean.shape[0],), device="cuda")
        noisy, noise = _add_noise(clean, steps, levels)
        conditions = {name: batch[name] for name in extra or {}}
        more = {"added_cond_kwargs": conditions} if conditions else {}
        predicted = model(noisy, steps, batch["text"], return_dict=False, **more)[0]
        return F.mse_loss(predicted.float(), noise.float())

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), **rest)


def sd15_unet(
    *, batch: int = 4, latent: int = 64, precision: str = "bf16", optimizer: str = "adamw",
    checkpointing: bool = False, style: str = "function",
) -> Step:  # fmt: skip
    """Stable Diffusion 1.5's conditional U-Net (860 M parameters)."""
    from diffusers import UNet2DConditionModel

    with torch.device("cuda"):
        model = UNet2DConditionModel(
            sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280)
        )
    model.train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    return _text_conditioned(model, batch, latent, 77, 768, optimizer=optimizer, precision=precision, style=style)


def sdxl_unet(
    *, batch: int = 2, latent: int = 96, precision: str = "bf16", optimizer: str = "adamw-fused",
    checkpointing: bool = True, style: str = "function",
) -> Step:  # fmt: skip
    """SDXL's U-Net (2.6 B parameters)."""
    from diffusers import UNet2DConditionModel

    with torch.device("cuda"):
        model = UNet2DConditionModel(
            sample_size=128, cross_attention_dim=2048, attention_head_dim=[5, 10, 20], use_linear_projection=True,
            block_out_channels=(320, 640, 1280), transformer_layers_per_block=[1, 2, 10],
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
        )  # fmt: skip
    model.train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    return _text_conditioned(
        model, batch, latent, 77, 2048, extra={"text_embeds": 1280, "time_ids": 6}, optimizer=optimizer,
        precision=precision, style=style,
    )  # fmt: skip


def dit_xl(
    *, batch: int = 20, latent: int = 32, precision: str = "bf16", optimizer: str = "adamw", layers: int = 28,
    style: str = "loop",
) -> Step:  # fmt: skip
    """DiT-XL/2: class-conditional, adaptive layer norm."""
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=16, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=layers,
        sample_size=latent, patch_size=2, num_embeds_ada_norm=1000,
    )  # fmt: skip
    model = model.to("cuda").train()
    levels = _noise_levels()
    data = {"latents": torch.randn(batch, 4, latent, latent), "classes": torch.randint(0, 1000, (batch,))}

    def forward(model: nn.Module, batch: Batch) -> Any:
        clean = batch["latents"]
        steps = torch.randint(0, 1000, (clean.shape[0],), device="cuda")
        noisy, noise = _add_noise(clean, steps, levels)
        predicted = model(noisy, timestep=steps, class_labels=batch["classes"]).sample
        return F.mse_loss(predicted[:, :4].float(), noise), predicted

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)


def vae(
    *, batch: int = 3, size: int = 240, precision: str = "fp32", optimizer: str = "adam", style: str = "function"
) -> Step:  # fmt: skip
    """Stable Diffusion's autoencoder, trained on reconstruction and the KL term."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=size,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    model = model.to("cuda").train()

    def forward(model: Any, batch: Batch) -> Any:
        posterior = model.encode(batch["images"]).latent_dist
        restored = model.decode(posterior.sample()).sample
        return F.l1_loss(restored, batch["images"]) + 1e-6 * posterior.kl().mean(), restored

    return train(
        model, {"images": torch.randn(batch, 3, size, size)}, forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style=style,
    )  # fmt: skip


def sd3_transformer(
    *, batch: int = 4, latent: int = 60, precision: str = "fp32", weights: str = "bf16",
    optimizer: str = "adamw", layers: int = 12, checkpointing: bool = False,
) -> Step:  # fmt: skip
    """An SD3-like joint transformer (half of SD3-medium's depth) under flow matching, trained in pure bf16."""
    from diffusers import SD3Transformer2DModel

    with torch.device("cuda"):
        model = SD3Transformer2DModel(
            sample_size=128, patch_size=2, in_channels=16, num_layers=layers, attention_head_dim=64,
            num_attention_heads=24, joint_attention_dim=4096, caption_projection_dim=1536,
            pooled_projection_dim=2048, out_channels=16, pos_embed_max_size=192,
        )  # fmt: skip
    dtype = torch.bfloat16 if weights == "bf16" else torch.float32
    model = model.to(dtype).train()
    if checkpointing:
        model.enable_gradient_checkpointing()
    data = {
        "latents": torch.randn(batch, 16, latent, latent).to(dtype),
        "text": torch.randn(batch, 154, 4096).to(dtype),
        "pooled": torch.randn(batch, 2048).to(dtype),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        clean = batch["latents"]
        noise = torch.randn_like(clean)
        sigma = torch.rand(clean.shape[0], 1, 1, 1, device="cuda", dtype=clean.dtype)
        noisy = (1 - sigma) * clean + sigma * noise
        predicted = model(
            hidden_states=noisy, timestep=sigma.flatten() * 1000, encoder_hidden_states=batch["text"],
            pooled_projections=batch["pooled"], return_dict=False,
        )[0]  # fmt: skip
        return (predicted.float() - (noise - clean).float()).pow(2).mean()

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision)


def flux_transformer(
    *, batch: int = 2, tokens: int = 900, precision: str = "fp32", optimizer: str = "adafactor", double: int = 4,
    single: int = 8, style: str = "loop", cudnn_attention: bool = True,
) -> Step:  # fmt: skip
    """A shallow Flux: double-stream then single-stream blocks, rotary embedding, pure bf16.

    With torch 2.11, cuDNN 9.19 and an H200 its backward pass ended in an illegal memory access; the likely culprit,
    cuDNN's attention, can be switched off as users do.
    """
    from diffusers import FluxTransformer2DModel

    torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)

    with torch.device("cuda"):
        model = FluxTransformer2DModel(
            patch_size=1, in_channels=64, num_layers=double, num_single_layers=single, attention_head_dim=128,
            num_attention_heads=16, joint_attention_dim=4096, pooled_projection_dim=768, guidance_embeds=True,
            axes_dims_rope=(16, 56, 56),
        )  # fmt: skip
    model = model.to(torch.bfloat16).train()
    side = int(tokens**0.5)
    axes = torch.arange(1), torch.arange(side), torch.arange(side)
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    data = {
        "latents": torch.randn(batch, side * side, 64).bfloat16(),
        "text": torch.randn(batch, 256, 4096).bfloat16(),
        "pooled": torch.randn(batch, 768).bfloat16(),
        "image_ids": grid.reshape(-1, 3).bfloat16(),
        "text_ids": torch.zeros(256, 3).bfloat16(),
    }

    def forward(model: nn.Module, batch: Batch) -> Any:
        clean = batch["latents"]
        noise = torch.randn_like(clean)
        time = torch.rand(clean.shape[0], device="cuda").bfloat16()
        noisy = torch.lerp(clean, noise, time.view(-1, 1, 1))
        predicted = model(
            hidden_states=noisy, timestep=time, guidance=torch.full_like(time, 3.5), img_ids=batch["image_ids"],
            pooled_projections=batch["pooled"], encoder_hidden_states=batch["text"], txt_ids=batch["text_ids"],
            return_dict=False,
        )[0]  # fmt: skip
        return F.mse_loss(predicted.float(), (noise - clean).float()), predicted

    return train(model, data, forward, make_optimizer(optimizer, model.parameters()), precision=precision, style=style)
