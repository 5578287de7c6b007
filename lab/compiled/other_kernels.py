"""Models with Triton kernels of others: Liger (liger-kernel), flash-linear-attention (fla) and torchao."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import models
import torch
from loop import ids, labelled, train, workload
from torch import nn


@workload
def liger_llama_bf16() -> None:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()
    model = models.llama(num_hidden_layers=4).cuda().bfloat16()
    model.train()
    train(model, labelled(model, 6, 1024, 32000), clip=True)


@workload
def liger_qwen_amp() -> None:
    from liger_kernel.transformers import apply_liger_kernel_to_qwen3
    from transformers import Qwen3Config

    apply_liger_kernel_to_qwen3()
    config = Qwen3Config(
        hidden_size=768, intermediate_size=2304, num_hidden_layers=4, num_attention_heads=12, num_key_value_heads=4,
        head_dim=64, vocab_size=96000,
    )  # fmt: skip
    model = models.causal(config).cuda()
    model.train()
    train(model, labelled(model, 4, 1024, 96000), amp=torch.bfloat16)


@workload
def liger_losses() -> None:
    """The modules by themselves: norm, gated MLP and the fused loss on a small stack."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, LigerRMSNorm, LigerSwiGLUMLP
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, hidden_act="silu")
    embed = nn.Embedding(64000, 1024)
    body = nn.Sequential(*(nn.Sequential(LigerRMSNorm(1024), LigerSwiGLUMLP(config)) for _ in range(4)))
    head = nn.Linear(1024, 64000, bias=False)
    model = nn.ModuleList([embed, body, head]).cuda().bfloat16()
    loss = LigerFusedLinearCrossEntropyLoss()

    def loss_of(step: int) -> torch.Tensor:
        tokens = ids(8, 1024, 64000)
        return loss(head.weight, body(embed(tokens)).flatten(0, 1), tokens.flatten())  # type: ignore[no-any-return]

    train(model, loss_of)


@workload
def liger_gemma3_bf16() -> None:
    from liger_kernel.transformers import apply_liger_kernel_to_gemma3_text
    from transformers import Gemma3TextConfig

    apply_liger_kernel_to_gemma3_text()
    config = Gemma3TextConfig(
        hidden_size=640, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1,
        head_dim=256, vocab_size=131072,
    )  # fmt: skip
    model = models.causal(config).cuda().bfloat16()
    model.train()
    train(model, labelled(model, 4, 1024, 131072), clip=True)


@workload
def liger_auto_model() -> None:
    """A saved model, loaded with Liger's own class, with gradient checkpointing."""
    from liger_kernel.transformers import AutoLigerKernelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        models.llama(num_hidden_layers=4).bfloat16().save_pretrained(folder)
        model = AutoLigerKernelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda()
    model.gradient_checkpointing_enable()
    model.train()
    train(model, labelled(model, 6, 1024, 32000))


@workload
def liger_dpo_loss() -> None:
    from liger_kernel.chunked_loss import LigerFusedLinearDPOLoss

    model, reference = _policy(), _policy().requires_grad_(False)
    loss = LigerFusedLinearDPOLoss()

    def loss_of(step: int) -> torch.Tensor:
        tokens = ids(8, 512, 32000)
        with torch.no_grad():
            known = reference[1](reference[0](tokens))
        return loss(model[2].weight, model[1](model[0](tokens)), tokens, None, known, reference[2].weight)[0]  # type: ignore[no-any-return]

    train(model, loss_of)


@workload
def liger_grpo_loss() -> None:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    model = _policy()
    loss = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False)

    def loss_of(step: int) -> torch.Tensor:
        tokens = ids(8, 512, 32000)
        mask, advantages = torch.ones_like(tokens), torch.linspace(-1, 1, 8, device="cuda")
        return loss(model[1](model[0](tokens)), model[2].weight, tokens, mask, advantages)[0]  # type: ignore[no-any-return]

    train(model, loss_of)


def _policy() -> nn.Sequential:
    body = nn.Sequential(*(nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 1024), nn.GELU()) for _ in range(4)))
    return nn.Sequential(nn.Embedding(32000, 1024), body, nn.Linear(1024, 32000, bias=False)).cuda().bfloat16()


def _try_two_configurations() -> None:
    """Its kernels have up to a hundred, and compiling them takes many minutes. What is timed takes the same memory."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fla."):
            for kernel in vars(module).values():
                while kernel is not None and type(kernel).__module__.startswith(("triton.runtime", "fla.")):
                    if len(getattr(kernel, "configs", ())) > 2:
                        kernel.configs = kernel.configs[:2]
                    kernel = getattr(kernel, "fn", None)


def _fla(model: Any, vocab: int) -> None:
    _try_two_configurations()
    model = model.cuda().bfloat16()
    model.train()
    train(model, labelled(model, 6, 1024, vocab), clip=True)


@workload
def fla_gla_bf16() -> None:
    from fla.models import GLAConfig, GLAForCausalLM

    config = GLAConfig(hidden_size=768, num_hidden_layers=4, num_heads=4, vocab_size=32000, use_cache=False)
    _fla(GLAForCausalLM(config), 32000)


@workload
def fla_delta_net_bf16() -> None:
    from fla.models import DeltaNetConfig, DeltaNetForCausalLM

    config = DeltaNetConfig(hidden_size=768, num_hidden_layers=4, num_heads=6, vocab_size=32000, use_cache=False)
    _fla(DeltaNetForCausalLM(config), 32000)


@workload
def fla_retnet_bf16() -> None:
    from fla.models import RetNetConfig, RetNetForCausalLM

    config = RetNetConfig(hidden_size=768, num_hidden_layers=4, num_heads=4, vocab_size=32000, use_cache=False)
    _fla(RetNetForCausalLM(config), 32000)


@workload
def fla_rwkv7_bf16() -> None:
    from fla.models import RWKV7Config, RWKV7ForCausalLM

    config = RWKV7Config(hidden_size=768, num_hidden_layers=4, head_dim=64, vocab_size=32000, use_cache=False)
    _fla(RWKV7ForCausalLM(config), 32000)


@workload
def fla_gsa_bf16() -> None:
    from fla.models import GSAConfig, GSAForCausalLM

    config = GSAConfig(hidden_size=768, num_hidden_layers=4, num_heads=4, vocab_size=32000, use_cache=False)
    _fla(GSAForCausalLM(config), 32000)


@workload
def fla_hgrn2_bf16() -> None:
    from fla.models import HGRN2Config, HGRN2ForCausalLM

    config = HGRN2Config(hidden_size=768, num_hidden_layers=4, expand_ratio=128, vocab_size=32000, use_cache=False)
    _fla(HGRN2ForCausalLM(config), 32000)


@workload
def fla_kda_bf16() -> None:
    from fla.models import KDAConfig, KDAForCausalLM

    config = KDAConfig(hidden_size=768, num_hidden_layers=4, num_heads=6, vocab_size=32000, use_cache=False)
    _fla(KDAForCausalLM(config), 32000)


# -- torchao ----------------------------------------------------------------------------------------------------------


def _float8(recipe: str, *, compiled: bool = False) -> None:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    model = models.llama(num_hidden_layers=4).cuda().bfloat16()
    model.train()
    convert_to_float8_training(model.model, config=Float8LinearConfig.from_recipe_name(recipe))
    called = torch.compile(model) if compiled else model
    train(called, labelled(called, 6, 1024, 32000))


@workload
def torchao_float8_tensorwise() -> None:
    _float8("tensorwise")


@workload
def torchao_float8_rowwise() -> None:
    _float8("rowwise")


@workload
def torchao_float8_compiled() -> None:
    _float8("tensorwise", compiled=True)


def _low_bit(name: str) -> None:
    import torchao.optim

    model = models.llama(num_hidden_layers=4).cuda().bfloat16()
    model.train()
    train(model, labelled(model, 4, 1024, 32000), optimizer=getattr(torchao.optim, name)(model.parameters(), lr=1e-4))


@workload
def torchao_adamw_8bit() -> None:
    _low_bit("AdamW8bit")


@workload
def torchao_adamw_4bit() -> None:
    _low_bit("AdamW4bit")


@workload
def torchao_adamw_fp8() -> None:
    _low_bit("AdamWFp8")


@workload
def torchao_offloaded_adamw() -> None:
    from torchao.optim import CPUOffloadOptimizer

    model = models.llama(num_hidden_layers=4).cuda().bfloat16()
    model.train()
    optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=True, lr=1e-4, fused=True)
    train(model, labelled(model, 4, 1024, 32000), optimizer=optimizer)


@workload
def torchao_int8_training() -> None:
    from torchao.prototype.quantized_training import int8_mixed_precision_training
    from torchao.quantization import quantize_

    model = models.llama(num_hidden_layers=4).cuda().bfloat16()
    model.train()
    quantize_(model.model, int8_mixed_precision_training())
    train(model, labelled(model, 4, 1024, 32000))
