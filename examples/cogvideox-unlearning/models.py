"""The parts of a diffusers folder in bf16 on the GPU: with their weights, or random ones where there are none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from diffusers import AutoencoderKLCogVideoX, CogVideoXDPMScheduler, CogVideoXTransformer3DModel
from diffusers.models.embeddings import get_3d_rotary_pos_embed
from torch import Tensor
from transformers import T5Config, T5EncoderModel

BF16 = torch.bfloat16


@contextmanager
def made_in_bf16() -> Iterator[None]:
    """What is built inside is made on the GPU in bf16, and never exists in fp32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(BF16)
    try:
        with torch.device("cuda"):
            yield
    finally:
        torch.set_default_dtype(before)


def load_part(kind: type, folder: Path, name: str) -> torch.nn.Module:
    """A diffusers model or T5, frozen and in evaluation mode."""
    if any((folder / name).glob("*.safetensors")):
        model = kind.from_pretrained(folder, subfolder=name, torch_dtype=BF16).cuda()
    else:
        with made_in_bf16():
            if kind is T5EncoderModel:
                model = T5EncoderModel(T5Config.from_pretrained(folder, subfolder=name))
            else:
                model = kind.from_config(kind.load_config(folder, subfolder=name))
    return model.requires_grad_(False).eval()


def load_transformer(folder: Path) -> CogVideoXTransformer3DModel:
    return load_part(CogVideoXTransformer3DModel, folder, "transformer")


def load_text_encoder(folder: Path) -> T5EncoderModel:
    return load_part(T5EncoderModel, folder, "text_encoder")


def load_vae(folder: Path) -> AutoencoderKLCogVideoX:
    return load_part(AutoencoderKLCogVideoX, folder, "vae")


def load_scheduler(folder: Path) -> CogVideoXDPMScheduler:
    return CogVideoXDPMScheduler.from_pretrained(folder, subfolder="scheduler")


def rotary_places(transformer: CogVideoXTransformer3DModel, latents: Tensor) -> tuple[Tensor, Tensor]:
    """The rotary embedding of every patch of latents (batch, frames, channels, height, width)."""
    patch, head = transformer.config.patch_size, transformer.config.attention_head_dim
    _, frames, _, height, width = latents.shape
    grid = (height // patch, width // patch)
    return get_3d_rotary_pos_embed(head, ((0, 0), grid), grid, frames, device=latents.device)
