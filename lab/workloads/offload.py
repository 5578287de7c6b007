"""Training and inference with a part of it in the computer's memory, each by the mechanism that people use."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Step, autocast_for, make_optimizer
from lab.workloads.language import _llama_config, _tokens

BF16 = torch.bfloat16


def _language_model(name: str, length: int) -> tuple[Any, int]:
    """On the card, in fp32, with its vocabulary."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

    if name.startswith("gpt2"):
        shape = {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16)}[name]
        layers, width, heads = shape
        config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=max(length, 1024))
        return GPT2LMHeadModel(config).cuda(), config.vocab_size
    width, layers, heads, inner = {"llama-05b": (1280, 16, 20, 3456), "llama-1b": (2048, 22, 32, 5632)}[name]
    with torch.device("cuda"):
        return LlamaForCausalLM(_llama_config(width, layers, heads, heads // 4, inner, 32000)), 32000


def activations(
    *, model: str = "gpt2", batch: int = 8, length: int = 1024, pinned: bool = False, checkpointing: str = "none",
    precision: str = "bf16", optimizer: str = "adamw", offload: bool = True,
) -> Step:  # fmt: skip
    """What autograd saves lies in the computer's memory: torch.autograd.graph.save_on_cpu. `offload`: false for the
    same without it."""
    made, vocabulary = _language_model(model, length)
    made.train()
    if checkpointing != "none":
        made.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
        made.enable_input_require_grads()
    chosen = make_optimizer(optimizer, made.parameters())
    data = _tokens(batch, length, vocabulary)

    def step() -> None:
        chosen.zero_grad()
        inputs = {name: tensor.to("cuda") for name, tensor in data.items()}
        saved = torch.autograd.graph.save_on_cpu(pin_memory=pinned) if offload else nullcontext()
        with saved, autocast_for(precision):
            loss = made(**inputs).loss
        loss.backward()
        chosen.step()

    return step


def optimizer(
    *, model: str = "llama-1b", batch: int = 2, length: int = 1024, gradients: bool = False, weights: str = "fp32",
    how: str = "torchao",
) -> Step:  # fmt: skip
    """Adam's step on the CPU: torchao's CPUOffloadOptimizer, or fp32 copies of the weights for a plain Adam."""
    made, vocabulary = _language_model(model, length)
    if weights == "bf16":
        made = made.to(BF16)
    made.train()
    chosen: Any
    if how == "torchao":
        from torchao.optim import CPUOffloadOptimizer

        chosen = CPUOffloadOptimizer(made.parameters(), torch.optim.AdamW, offload_gradients=gradients, lr=1e-4)
    else:
        chosen = HostAdam(list(made.parameters()))
    data = _tokens(batch, length, vocabulary)

    def step() -> None:
        inputs = {name: tensor.to("cuda") for name, tensor in data.items()}
        with autocast_for("fp32" if weights == "bf16" else "bf16"):
            loss = made(**inputs).loss
        loss.backward()
        chosen.step()
        chosen.zero_grad()

    return step


class HostAdam:
    """fp32 copies of the parameters, their gradients and Adam's moments, all on the CPU."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._masters = [p.detach().float().cpu().requires_grad_() for p in parameters]
        self._adam = torch.optim.AdamW(self._masters, lr=1e-4, fused=True)

    @torch.no_grad()
    def step(self) -> None:
        for master, parameter in zip(self._masters, self._parameters, strict=True):
            if parameter.grad is not None:
                master.grad = parameter.grad.cpu().float()
        self._adam.step()
        for master, parameter in zip(self._masters, self._parameters, strict=True):
            parameter.copy_(master)

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _text_encoder(width: int = 2048, layers: int = 12) -> nn.Module:
    """Half of T5-XL's encoder, on the CPU in bf16."""
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        d_model=width, d_kv=64, d_ff=width * 5 // 2, num_layers=layers, num_heads=width // 64,
        feed_forward_proj="gated-gelu", vocab_size=32128,
    )  # fmt: skip
    return T5EncoderModel(config).to(BF16).eval().requires_grad_(False)


def _vae() -> Any:
    from diffusers import AutoencoderKL

    made = AutoencoderKL(
        block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4, sample_size=512,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    )  # fmt: skip
    return made.to(BF16).eval().requires_grad_(False)


def _unet(width: int = 320) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=64, cross_attention_dim=2048, attention_head_dim=8,
        block_out_channels=(width, 2 * width, 4 * width, 4 * width),
    )  # fmt: skip


def frozen_encoders(*, batch: int = 2, size: int = 384, width: int = 192, offload: str = "model") -> Step:
    """A U-Net trained on what a frozen text encoder and autoencoder make of a batch. `offload`: none, model (each is
    moved to the card for its call, as diffusers' scripts do with --offload) or sequential (accelerate.cpu_offload)."""
    from diffusers.training_utils import offload_models

    text, vae, unet = _text_encoder(), _vae(), _unet(width).cuda().train()
    if offload == "sequential":
        from accelerate import cpu_offload

        cpu_offload(text, torch.device("cuda", 0))
        cpu_offload(vae, torch.device("cuda", 0))
    elif offload == "none":
        text, vae = text.cuda(), vae.cuda()
    moved = offload == "model"
    chosen = make_optimizer("adamw", unet.parameters())
    ids, images = torch.randint(0, 32128, (batch, 128)), torch.randn(batch, 3, size, size).to(BF16)

    def step() -> None:
        chosen.zero_grad()
        with torch.no_grad():
            with offload_models(text, device="cuda", offload=moved):
                condition = text(ids.cuda()).last_hidden_state
            with offload_models(vae, device="cuda", offload=moved):
                latents = vae.encode(images.cuda()).latent_dist.sample().float()
        noise = torch.randn_like(latents)
        times = torch.randint(0, 1000, (batch,), device="cuda")
        with autocast_for("bf16"):
            predicted = unet(latents + noise, times, condition, return_dict=False)[0]
            loss = F.mse_loss(predicted.float(), noise)
        loss.backward()
        chosen.step()

    return step


def pipeline(*, batch: int = 2, size: int = 512, offload: str = "model") -> Step:
    """Text encoder, U-Net and decoder one after the other without gradients, as diffusers' enable_model_cpu_offload
    (model) and enable_sequential_cpu_offload (sequential) run them."""
    from accelerate import cpu_offload, cpu_offload_with_hook

    text, unet, vae = _text_encoder(), _unet().to(BF16).eval(), _vae()
    card = torch.device("cuda", 0)
    last: Any = None
    if offload == "model":
        for module in (text, unet, vae):
            _, last = cpu_offload_with_hook(module, card, prev_module_hook=last)
    elif offload == "none":
        for module in (text, unet, vae):
            module.cuda()
    else:
        for module in (text, unet, vae):
            cpu_offload(module, card, offload_buffers=True)
    ids = torch.randint(0, 32128, (batch, 128))

    @torch.no_grad()
    def step() -> None:
        condition = text(ids.cuda()).last_hidden_state
        latents = torch.randn(batch, 4, size // 8, size // 8, device="cuda", dtype=BF16)
        for time in (900, 500):
            latents = unet(latents, torch.tensor(time, device="cuda"), condition, return_dict=False)[0]
        vae.decode(latents)
        if last is not None:
            last.offload()

    return step


def frozen_original(*, batch: int = 2, length: int = 1024, offload: bool = True) -> Step:
    """A model trained towards a frozen copy of itself, which lies on the CPU between its calls."""
    student, vocabulary = _language_model("llama-05b", length)
    original = copy.deepcopy(student).to(BF16).eval().requires_grad_(False)
    if offload:
        from accelerate import cpu_offload_with_hook

        _, hook = cpu_offload_with_hook(original, torch.device("cuda", 0))
        hook.offload()
    chosen = make_optimizer("adamw-fused", student.train().parameters())
    ids = torch.randint(0, vocabulary, (batch, length))

    def step() -> None:
        chosen.zero_grad()
        inputs = ids.cuda()
        with torch.no_grad():
            wanted = original(inputs).logits
        if offload:
            hook.offload()
        with autocast_for("bf16"):
            loss = F.mse_loss(student(inputs).logits.float(), wanted.float())
        loss.backward()
        chosen.step()

    return step
