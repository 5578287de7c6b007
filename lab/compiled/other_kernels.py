"""Models with Triton kernels of others: Liger (liger-kernel) and flash-linear-attention (fla)."""

from __future__ import annotations

import sys
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
