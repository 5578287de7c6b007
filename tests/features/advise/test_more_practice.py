"""More well-known cases: adapters that a job has already, the largest language models, images and speech."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.features.advise.test_practice import (
    FP32,
    LLAMA_FACTORY,
    ONE_GPU,
    SHORT,
    Case,
    changed,
    llama,
    llama_7b,
    llama_33b,
    stable_diffusion,
)
from vramcast.jobs.load import load_job

pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")
pytest.importorskip("diffusers")
pytestmark = pytest.mark.slow

QLORA_PAPER = "https://arxiv.org/abs/2305.14314"
"""A 65B model on a single 48 GB GPU, 33B on 24 GB."""
AXOLOTL_QLORA = "https://github.com/axolotl-ai-cloud/axolotl/blob/main/examples/llama-3/qlora.yml"
"""8B with 4,096 tokens: 4-bit weights and gradient checkpointing."""
EIGHT_BIT_STATE = "https://arxiv.org/abs/2110.02861"
"""8-bit optimizers: the same results with a quarter of the state."""
WHISPER = "https://github.com/huggingface/community-events/tree/main/whisper-fine-tuning-event#python-script"
"""The large model: a smaller batch with accumulation, mixed precision, gradient checkpointing, adamw_bnb_8bit."""
SDXL = "https://github.com/huggingface/diffusers/blob/main/examples/text_to_image/README_sdxl.md"
"""Mixed precision, gradient checkpointing and 8-bit Adam; LoRA on smaller cards."""
LORA_DIFFUSION = "https://huggingface.co/docs/diffusers/training/lora"
"""The frozen networks are in fp16; about 11 GB of memory."""
FLUX = "https://huggingface.co/blog/flux-qlora"
"""The transformer in 4 bits with gradient checkpointing on a consumer card."""
FLUX_LORA = "https://github.com/huggingface/diffusers/blob/main/examples/dreambooth/README_flux.md"
"""About 40 GB with a bf16 base and gradient checkpointing."""
BERT = "https://github.com/google-research/bert#out-of-memory-issues"
"""SQuAD: a smaller batch with accumulated gradients, checkpointing; NVIDIA's recipe adds mixed precision."""

CUT_LOSS = "https://github.com/apple/ml-cross-entropy"
"""Of small models with a large vocabulary the logits take most: the loss is to be computed without all of them."""
ON_A_T4 = "https://unsloth.ai/blog/phi3"
"""Llama 3 8B on a T4, which computes no bf16: a notebook with fp16, 4-bit weights and gradient checkpointing."""


def written(folder: Path, **config: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def llama_65b(folder: Path) -> str:
    return llama(folder, 8192, 22016, 80, 64)


def llama3_8b(folder: Path) -> str:
    return written(
        folder, architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=4096, intermediate_size=14336,
        num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
        max_position_embeddings=8192,
    )  # fmt: skip


def whisper_large(folder: Path) -> str:
    return written(
        folder, architectures=["WhisperForConditionalGeneration"], model_type="whisper", d_model=1280,
        encoder_layers=32, decoder_layers=32, encoder_attention_heads=20, decoder_attention_heads=20,
        encoder_ffn_dim=5120, decoder_ffn_dim=5120, num_mel_bins=80, vocab_size=51865,
    )  # fmt: skip


def bert_base(folder: Path) -> str:
    return written(folder, architectures=["BertForQuestionAnswering"], model_type="bert")


def bert_large_squad(folder: Path) -> str:
    return written(
        folder, architectures=["BertForQuestionAnswering"], model_type="bert", hidden_size=1024,
        intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16,
    )  # fmt: skip


def qwen_small(folder: Path) -> str:
    return written(
        folder, architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=896, intermediate_size=4864,
        num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936,
        max_position_embeddings=32768, tie_word_embeddings=True,
    )  # fmt: skip


def vit_large(folder: Path) -> str:
    return written(
        folder, architectures=["ViTForImageClassification"], model_type="vit", hidden_size=1024, num_hidden_layers=24,
        num_attention_heads=16, intermediate_size=4096,
    )  # fmt: skip


def sdxl(folder: Path) -> str:
    return written(
        folder, _class_name="UNet2DConditionModel", addition_embed_type="text_time", addition_time_embed_dim=256,
        attention_head_dim=[5, 10, 20], block_out_channels=[320, 640, 1280], cross_attention_dim=2048,
        down_block_types=["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"], sample_size=128,
        projection_class_embeddings_input_dim=2816, transformer_layers_per_block=[1, 2, 10],
        up_block_types=["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"], use_linear_projection=True,
    )  # fmt: skip


def flux(folder: Path) -> str:
    return written(
        folder, _class_name="FluxTransformer2DModel", attention_head_dim=128, guidance_embeds=True, in_channels=64,
        joint_attention_dim=4096, num_attention_heads=24, num_layers=19, num_single_layers=38, patch_size=1,
        pooled_projection_dim=768,
    )  # fmt: skip


ONE = {"sizes.batch": 1}
ADAPTERS = {"components.model.mode": "lora"}
CASES: dict[str, Case] = {
    "65B on 48 GB": (llama_65b, SHORT, "rtx-6000-ada", {"qlora", "checkpointing"}, set(), QLORA_PAPER),
    "65B on 80 GB": (llama_65b, SHORT, "h100", {"qlora"}, set(), LLAMA_FACTORY),
    "33B on 24 GB": (llama_33b, SHORT, "rtx-4090", {"qlora", "checkpointing"}, set(), QLORA_PAPER),
    "8B on 16 GB": (llama3_8b, SHORT, "rtx-4060-ti-16gb", {"qlora", "checkpointing"}, set(), LLAMA_FACTORY),
    "8B, 4,096 tokens on 24 GB": (
        llama3_8b, {"sizes.batch": 1, "sizes.sequence": 4096}, "rtx-4090", {"qlora", "checkpointing"}, set(),
        AXOLOTL_QLORA,
    ),
    "7B in full on 80 GB": (llama_7b, SHORT, "h100", {"8-bit Adam"}, {"lora", "qlora"}, EIGHT_BIT_STATE),
    "LoRA of 7B in fp32 on 24 GB": (
        llama_7b, SHORT | ADAPTERS, "rtx-4090", {"half base"}, {"half weights", "8-bit Adam"}, LLAMA_FACTORY,
    ),
    "Whisper large on 24 GB": (
        whisper_large, {"sizes.batch": 16} | FP32, "rtx-4090", {"mixed precision", "8-bit Adam", "accumulation"},
        {"lora", "half weights"}, WHISPER,
    ),
    "Whisper large on 16 GB": (
        whisper_large, {"sizes.batch": 8} | FP32, "rtx-4060-ti-16gb", {"8-bit Adam", "accumulation", "checkpointing"},
        {"lora", "half weights"}, WHISPER,
    ),
    "BERT base on SQuAD on 8 GB": (
        bert_base, {"sizes.batch": 32, "sizes.sequence": 384} | FP32, "rtx-3070", {"mixed precision"}, {"lora"}, BERT,
    ),
    "ViT large, batch 64 on 12 GB": (
        vit_large, {"sizes.batch": 64} | FP32, "rtx-3060-12gb", {"mixed precision"}, {"lora", "half weights"}, ONE_GPU,
    ),
    "SDXL in full on 24 GB": (sdxl, ONE | FP32, "rtx-4090", {"8-bit Adam"}, {"lora"}, SDXL),
    "SDXL LoRA on 12 GB": (
        sdxl, ONE | FP32 | ADAPTERS, "rtx-3060-12gb", {"half base", "checkpointing"}, {"half weights", "8-bit Adam"},
        SDXL,
    ),
    "Stable Diffusion on 12 GB": (
        stable_diffusion, ONE | FP32, "rtx-3060-12gb", {"8-bit Adam", "mixed precision"}, {"lora"}, SDXL,
    ),
    "Stable Diffusion LoRA on 8 GB": (
        stable_diffusion, {"sizes.batch": 4} | FP32 | ADAPTERS, "rtx-3070", {"half base"}, {"half weights"},
        LORA_DIFFUSION,
    ),
    "Qwen2.5-0.5B, 4,096 tokens on 12 GB": (
        qwen_small, {"sizes.batch": 8, "sizes.sequence": 4096}, "rtx-3060-12gb",
        {"loss in pieces", "8-bit Adam", "accumulation"}, {"lora", "half weights"}, CUT_LOSS,
    ),
    "8B QLoRA on a T4": (
        llama3_8b, {"sizes.batch": 2, "sizes.sequence": 1024} | ADAPTERS | {"components.model.quantization": "nf4"},
        "t4", {"fp16", "checkpointing"}, set(), ON_A_T4,
    ),
    "BERT large on SQuAD on 11 GB": (
        bert_large_squad, {"sizes.batch": 24, "sizes.sequence": 384}, "rtx-2080-ti", {"fp16"}, {"lora"}, BERT,
    ),
    "Flux LoRA on 24 GB": (
        flux, ONE | ADAPTERS | {"precision": "bf16"}, "rtx-4090", {"4-bit base", "checkpointing"}, set(), FLUX,
    ),
    "Flux LoRA on 48 GB": (
        flux, ONE | ADAPTERS | {"precision": "bf16"}, "rtx-6000-ada", {"half base", "checkpointing"}, {"4-bit base"},
        FLUX_LORA,
    ),
}  # fmt: skip
USUAL = ("BERT base on SQuAD on 8 GB", "Stable Diffusion LoRA on 8 GB")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.exhaustive) for name in CASES]
)
def test_the_first_answer_is_the_usual_one(name: str, tmp_path: Path) -> None:
    model, sizes, gpu, has, has_not, source = CASES[name]
    found = vramcast.check(load_job(model(tmp_path), sizes), gpu)
    assert not found.fits and found.verdict.changes, source
    first = changed(found.verdict.changes[0])
    assert has <= first and not has_not & first, (source, [one.text for one in found.verdict.changes])
