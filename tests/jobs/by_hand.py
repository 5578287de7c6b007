"""The jobs of tests/jobs/folders as people write them: plain scripts, with nothing of vramcast but the card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from vramcast.card.device.context import virtual_gpu
from vramcast.trace import StepTrace

FOLDERS = Path(__file__).parent / "folders"
CARD = "h200"


def _config(folder: str) -> dict[str, Any]:
    return json.loads((FOLDERS / folder / "config.json").read_text())


def transformers_model(folder: str, class_name: str, batch: dict[str, torch.Tensor]) -> StepTrace:
    import transformers

    with virtual_gpu(CARD) as gpu:
        config = transformers.AutoConfig.from_pretrained(FOLDERS / folder)
        model = getattr(transformers, class_name)(config).to("cuda")
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(3):
            optimizer.zero_grad()
            inputs = {name: tensor.to("cuda") for name, tensor in batch.items()}
            with torch.autocast("cuda", dtype=torch.bfloat16):
                outputs = model(**inputs)
                loss = outputs.loss
            loss.backward()
            optimizer.step()
    del outputs, inputs
    return gpu.trace()


def llama(batch: int, length: int) -> StepTrace:
    ids = torch.randint(0, 32000, (batch, length))
    data = {"input_ids": ids, "attention_mask": torch.ones(batch, length, dtype=torch.long), "labels": ids.clone()}
    return transformers_model("llama-2-7b", "LlamaForCausalLM", data)


def llama_lora(batch: int, length: int, layers: int) -> StepTrace:
    """LoRA on a frozen bf16 base, checkpointed, as examples of peft have it."""
    import transformers
    from peft import LoraConfig, get_peft_model

    ids = torch.randint(0, 32000, (batch, length))
    data = {"input_ids": ids, "attention_mask": torch.ones(batch, length, dtype=torch.long), "labels": ids.clone()}
    with virtual_gpu(CARD) as gpu:
        config = transformers.AutoConfig.from_pretrained(FOLDERS / "llama-2-7b", num_hidden_layers=layers)
        base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        base.gradient_checkpointing_enable({"use_reentrant": False})
        lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(base, lora).train().to("cuda")
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
        for _ in range(3):
            optimizer.zero_grad()
            inputs = {name: tensor.to("cuda") for name, tensor in data.items()}
            with torch.autocast("cuda", dtype=torch.bfloat16):
                outputs = model(**inputs)
                loss = outputs.loss
            loss.backward()
            optimizer.step()
    del outputs, inputs
    return gpu.trace()


def bert(batch: int, length: int) -> StepTrace:
    ids = torch.randint(0, 30522, (batch, length))
    data = {"input_ids": ids, "attention_mask": torch.ones(batch, length, dtype=torch.long), "labels": ids.clone()}
    return transformers_model("bert-base", "BertForMaskedLM", data)


def t5(batch: int, source: int, target: int) -> StepTrace:
    data = {
        "input_ids": torch.randint(0, 32128, (batch, source)),
        "attention_mask": torch.ones(batch, source, dtype=torch.long),
        "labels": torch.randint(0, 32128, (batch, target)),
    }
    return transformers_model("t5-base", "T5ForConditionalGeneration", data)


def vit(batch: int) -> StepTrace:
    data = {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 1000, (batch,))}
    return transformers_model("vit-base", "ViTForImageClassification", data)


def whisper(batch: int, length: int) -> StepTrace:
    data = {"input_features": torch.randn(batch, 80, 3000), "labels": torch.randint(0, 51865, (batch, length))}
    return transformers_model("whisper-small", "WhisperForConditionalGeneration", data)


def unet(folder: str, batch: int, size: int) -> StepTrace:
    from diffusers import UNet2DConditionModel

    is_xl = folder == "sdxl-unet"
    data = {
        "latents": torch.randn(batch, 4, size // 8, size // 8),
        "text": torch.randn(batch, 77, 2048 if is_xl else 768),
    }
    if is_xl:
        data |= {"text_embeds": torch.randn(batch, 1280), "time_ids": torch.randn(batch, 6)}
    with virtual_gpu(CARD) as gpu:
        model = UNet2DConditionModel.from_config(_config(folder)).to("cuda").train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        levels = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), dim=0)
        for _ in range(3):
            optimizer.zero_grad()
            inputs = {name: tensor.to("cuda") for name, tensor in data.items()}
            with torch.autocast("cuda", dtype=torch.bfloat16):
                noise = torch.randn_like(inputs["latents"])
                timesteps = torch.randint(0, 1000, (batch,), device="cuda")
                noisy = add_noise(inputs["latents"], noise, timesteps, levels)
                more = {}
                if is_xl:
                    more = {"added_cond_kwargs": {name: inputs[name] for name in ("text_embeds", "time_ids")}}
                outputs = model(noisy, timesteps, inputs["text"], return_dict=False, **more)
                more = {}
                loss = F.mse_loss(outputs[0].float(), noise.float())
            loss.backward()
            optimizer.step()
    del outputs, inputs, noisy
    return gpu.trace()


def add_noise(clean: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    level = levels[timesteps].view(-1, *[1] * (clean.dim() - 1)).to(clean.dtype)
    return level.sqrt() * clean + (1 - level).sqrt() * noise


def flux(batch: int, size: int, layers: int) -> StepTrace:
    from diffusers import FluxTransformer2DModel

    tokens = (size // 16) ** 2
    data = {
        "latents": torch.randn(batch, tokens, 64).bfloat16(),
        "text": torch.randn(batch, 512, 4096).bfloat16(),
        "pooled": torch.randn(batch, 768).bfloat16(),
        "text_ids": torch.zeros(512, 3).bfloat16(),
        "image_ids": torch.zeros(tokens, 3).bfloat16(),
        "guidance": torch.ones(batch).bfloat16(),
    }
    with virtual_gpu(CARD) as gpu:
        config = _config("flux-dev/transformer") | {"num_layers": layers, "num_single_layers": 2 * layers}
        model = FluxTransformer2DModel.from_config(config).to(torch.bfloat16).to("cuda").train()
        model.enable_gradient_checkpointing()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(3):
            optimizer.zero_grad()
            inputs = {name: tensor.to("cuda") for name, tensor in data.items()}
            noise = torch.randn_like(inputs["latents"])
            sigma = torch.rand(batch, device="cuda", dtype=torch.bfloat16)
            noisy = blend(inputs["latents"], noise, sigma)
            velocity = noise - inputs["latents"]
            outputs = model(
                hidden_states=noisy, timestep=sigma, encoder_hidden_states=inputs["text"],
                pooled_projections=inputs["pooled"], txt_ids=inputs["text_ids"], img_ids=inputs["image_ids"],
                guidance=inputs["guidance"], return_dict=False,
            )  # fmt: skip
            loss = F.mse_loss(outputs[0].float(), velocity.float())
            loss.backward()
            optimizer.step()
    del outputs, inputs, noisy
    return gpu.trace()


def blend(clean: torch.Tensor, noise: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
    weight = sigma.view(-1, *[1] * (clean.dim() - 1))
    return (1 - weight) * clean + weight * noise


def cogvideox(batch: int, frames: int, size: int) -> StepTrace:
    """A pipeline: the frozen text encoder and autoencoder lie on the card beside the transformer."""
    from diffusers import AutoencoderKLCogVideoX, CogVideoXTransformer3DModel
    from transformers import AutoConfig, T5EncoderModel

    latent_frames = (frames - 1) // 4 + 1
    tokens = latent_frames * (size // 16) ** 2
    data = {
        "latents": torch.randn(batch, latent_frames, 16, size // 8, size // 8).bfloat16(),
        "text": torch.randn(batch, 226, 4096).bfloat16(),
    }
    folder = "cogvideox-5b"
    with virtual_gpu(CARD) as gpu:
        text_config = AutoConfig.from_pretrained(FOLDERS / folder / "text_encoder")
        text_encoder = T5EncoderModel._from_config(text_config, dtype=torch.bfloat16).to("cuda").requires_grad_(False)
        vae = AutoencoderKLCogVideoX.from_config(_config(f"{folder}/vae")).to(torch.bfloat16).to("cuda")
        vae.requires_grad_(False)
        model = CogVideoXTransformer3DModel.from_config(_config(f"{folder}/transformer"))
        model = model.to(torch.bfloat16).train()
        model.enable_gradient_checkpointing()
        model = model.to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        levels = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), dim=0)
        for _ in range(3):
            optimizer.zero_grad()
            inputs = {name: tensor.to("cuda") for name, tensor in data.items()}
            rotary = {
                "cos": torch.randn(tokens, 64, device="cuda"),
                "sin": torch.randn(tokens, 64, device="cuda"),
            }
            inputs |= rotary
            del rotary
            noise = torch.randn_like(inputs["latents"])
            timesteps = torch.randint(0, 1000, (batch,), device="cuda")
            noisy = add_noise(inputs["latents"], noise, timesteps, levels)
            outputs = model(
                hidden_states=noisy, timestep=timesteps, encoder_hidden_states=inputs["text"],
                image_rotary_emb=(inputs["cos"], inputs["sin"]), return_dict=False,
            )  # fmt: skip
            loss = F.mse_loss(outputs[0].float(), noise.float())
            loss.backward()
            optimizer.step()
    assert text_encoder is not None
    del outputs, inputs, noisy
    return gpu.trace()
