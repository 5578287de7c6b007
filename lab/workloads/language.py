"""Language models from transformers' configurations, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train

BF16 = torch.bfloat16


def _tokens(batch: int, length: int, vocabulary: int) -> Batch:
    ids = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids}


def _loss(model: nn.Module, batch: Batch) -> Any:
    return model(**batch).loss


def _loss_and_outputs(model: nn.Module, batch: Batch) -> Any:
    outputs = model(**batch)
    return outputs.loss, outputs


def _train(model: nn.Module, batch: Batch, optimizer: str, *, style: str = "function", **rest: Any) -> Step:
    model.train()
    forward = _loss_and_outputs if style == "loop" else _loss
    chosen = make_optimizer(optimizer, [p for p in model.parameters() if p.requires_grad])
    return train(model, batch, forward, chosen, style=style, **rest)


def gpt2(
    *, batch: int = 8, length: int = 1024, precision: str = "fp32", attention: str = "sdpa",
    optimizer: str = "adamw", style: str = "function", clip: float | None = None,
    accumulate: int = 1, layers: int = 12, width: int = 768, heads: int = 12,
) -> Step:  # fmt: skip
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=max(length, 1024), attn_implementation=attention
    )
    model = GPT2LMHeadModel(config).cuda()
    return _train(
        model, _tokens(batch, length, config.vocab_size), optimizer,
        precision=precision, style=style, clip=clip, accumulate=accumulate,
    )  # fmt: skip


def _llama_config(width: int, layers: int, heads: int, kv_heads: int, inner: int, vocabulary: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        intermediate_size=inner, vocab_size=vocabulary, max_position_embeddings=4096, use_cache=False,
    )  # fmt: skip


def llama(
    *, batch: int = 2, length: int = 1536, precision: str = "bf16", weights: str = "fp32", optimizer: str = "adamw",
    width: int = 2048, layers: int = 22, heads: int = 32, kv_heads: int = 4, inner: int = 5632,
    vocabulary: int = 32000, checkpointing: str = "none", style: str = "function", clip: float | None = None,
    attention: str = "sdpa",
) -> Step:  # fmt: skip
    """TinyLlama's shape by default. `checkpointing` is none, reentrant or non-reentrant."""
    from transformers import LlamaForCausalLM

    config = _llama_config(width, layers, heads, kv_heads, inner, vocabulary)
    config._attn_implementation = attention
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    if weights == "bf16":
        model = model.to(BF16)
    if checkpointing != "none":
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    return _train(
        model, _tokens(batch, length, vocabulary), optimizer, precision=precision, style=style, clip=clip
    )  # fmt: skip


def qwen2(
    *, batch: int = 3, length: int = 1000, precision: str = "bf16", weights: str = "fp32", optimizer: str = "adamw",
    layers: int = 24, checkpointing: str = "none", style: str = "function",
) -> Step:  # fmt: skip
    """Qwen2-0.5B's shape: a small model whose 151,936-token vocabulary makes the logits the peak."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=896, num_hidden_layers=layers, num_attention_heads=14, num_key_value_heads=2,
        intermediate_size=4864, vocab_size=151936, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    if weights == "bf16":
        model = model.bfloat16()
    model = model.to("cuda")
    if checkpointing != "none":
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    return _train(model, _tokens(batch, length, config.vocab_size), optimizer, precision=precision, style=style)


def llama_lora(
    *, batch: int = 4, length: int = 1152, rank: int = 16, optimizer: str = "adamw", precision: str = "fp32",
    width: int = 2560, layers: int = 28, heads: int = 20, kv_heads: int = 20, inner: int = 6912,
    checkpointing: str = "none", dropout: float = 0.05, style: str = "loop",
) -> Step:  # fmt: skip
    """LoRA by peft on a frozen bf16 base of about 2.5 B parameters; the adapters are fp32."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    with torch.device("cuda"):
        base = LlamaForCausalLM(_llama_config(width, layers, heads, kv_heads, inner, 32000)).to(BF16)
    if checkpointing != "none":
        base.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
        base.enable_input_require_grads()
    lora = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=dropout, task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )  # fmt: skip
    model = get_peft_model(base, lora).to("cuda")
    return _train(model, _tokens(batch, length, 32000), optimizer, precision=precision, style=style)


def bert(
    *, batch: int = 40, length: int = 384, precision: str = "fp32", optimizer: str = "adamw", layers: int = 12,
    attention: str = "sdpa", style: str = "function", clip: float | None = None, checkpointing: str = "none",
) -> Step:  # fmt: skip
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(num_hidden_layers=layers, attn_implementation=attention)
    model = BertForMaskedLM(config).cuda()
    if checkpointing != "none":
        model.gradient_checkpointing_enable({"use_reentrant": checkpointing == "reentrant"})
    inputs = _tokens(batch, length, config.vocab_size)
    inputs["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
    return _train(model, inputs, optimizer, precision=precision, style=style, clip=clip)


def roberta(
    *, batch: int = 24, length: int = 320, labels: int = 3, precision: str = "bf16", optimizer: str = "adamw",
    style: str = "loop", large: bool = True,
) -> Step:  # fmt: skip
    """Sequence classification, the padded ends of half the rows masked."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    size = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = RobertaConfig(
        vocab_size=50265, max_position_embeddings=514, num_labels=labels, pad_token_id=1, **(size if large else {})
    )
    model = RobertaForSequenceClassification(config).cuda()
    ids = torch.randint(5, config.vocab_size, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[::2, -17:] = 0
    ids[::2, -17:] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, labels, (batch,))}
    return _train(model, inputs, optimizer, precision=precision, style=style)


def deberta_v2(
    *, batch: int = 14, length: int = 256, precision: str = "fp32", optimizer: str = "adamw-fused",
    layers: int = 12, style: str = "function",
) -> Step:  # fmt: skip
    """DeBERTa-v3-base's shape with disentangled attention, for token classification."""
    from transformers import DebertaV2Config, DebertaV2ForTokenClassification

    config = DebertaV2Config(
        hidden_size=768, num_hidden_layers=layers, num_attention_heads=12, intermediate_size=3072, vocab_size=128100,
        relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm",
        share_att_key=True, type_vocab_size=0, num_labels=9,
    )  # fmt: skip
    model = DebertaV2ForTokenClassification(config).cuda()
    inputs = {
        "input_ids": torch.randint(5, config.vocab_size, (batch, length)),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
        "labels": torch.randint(0, 9, (batch, length)),
    }
    return _train(model, inputs, optimizer, precision=precision, style=style)


def _sequence_pair(batch: int, source: int, target: int, vocabulary: int) -> Batch:
    return {
        "input_ids": torch.randint(3, vocabulary, (batch, source)),
        "attention_mask": torch.ones(batch, source, dtype=torch.long),
        "labels": torch.randint(3, vocabulary, (batch, target)),
    }


def t5(
    *, batch: int = 12, source: int = 512, target: int = 114, precision: str = "fp32",
    optimizer: str = "adafactor-transformers", style: str = "function", gated: bool = False,
) -> Step:  # fmt: skip
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=768, d_kv=64, d_ff=2048 if gated else 3072, num_layers=12, num_heads=12, vocab_size=32128,
        feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated, use_cache=False,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).cuda()
    return _train(model, _sequence_pair(batch, source, target, 32128), optimizer, precision=precision, style=style)


def bart(
    *, batch: int = 10, source: int = 700, target: int = 140, precision: str = "fp16", optimizer: str = "adamw",
    style: str = "loop", clip: float | None = 1.0,
) -> Step:  # fmt: skip
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).cuda()
    inputs = _sequence_pair(batch, source, target, config.vocab_size)
    return _train(model, inputs, optimizer, precision=precision, style=style, clip=clip)


def marian(
    *, batch: int = 48, source: int = 90, target: int = 75, precision: str = "fp32", optimizer: str = "adam",
    style: str = "function",
) -> Step:  # fmt: skip
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=58101, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=58100,
        decoder_start_token_id=58100, use_cache=False, max_position_embeddings=512,
    )  # fmt: skip
    model = MarianMTModel(config).cuda()
    return _train(model, _sequence_pair(batch, source, target, 58000), optimizer, precision=precision, style=style)


def opt(
    *, batch: int = 5, length: int = 900, precision: str = "fp32", weights: str = "bf16", optimizer: str = "adamw",
    style: str = "loop",
) -> Step:  # fmt: skip
    """OPT-1.3B's shape, weights and optimizer state in bf16."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, ffn_dim=8192, use_cache=False)
    with torch.device("cuda"):
        model = OPTForCausalLM(config)
    if weights == "bf16":
        model.to(BF16)
    return _train(model, _tokens(batch, length, config.vocab_size), optimizer, precision=precision, style=style)


def gpt_neo(
    *, batch: int = 6, length: int = 600, precision: str = "fp32", optimizer: str = "rmsprop", style: str = "function"
) -> Step:  # fmt: skip
    """GPT-Neo 125M's shape with alternating global and local attention."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    config = GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]], use_cache=False
    )
    model = GPTNeoForCausalLM(config).cuda()
    return _train(model, _tokens(batch, length, config.vocab_size), optimizer, precision=precision, style=style)


def bloom(
    *, batch: int = 2, length: int = 540, precision: str = "bf16", optimizer: str = "adamw-fused", style: str = "loop"
) -> Step:  # fmt: skip
    """BLOOM-560M's shape: ALiBi, and 250,880 tokens."""
    from transformers import BloomConfig, BloomForCausalLM

    config = BloomConfig(hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880, use_cache=False)
    with torch.device("cuda"):
        model = BloomForCausalLM(config)
    return _train(model, _tokens(batch, length, config.vocab_size), optimizer, precision=precision, style=style)


def mixtral(
    *, batch: int = 3, length: int = 640, precision: str = "bf16", weights: str = "fp32", optimizer: str = "adamw",
    experts: int = 8, layers: int = 8, width: int = 768, inner: int = 2048, implementation: str = "eager",
    style: str = "function",
) -> Step:  # fmt: skip
    """A small mixture of experts. An eager loop over experts allocates as many tokens as each was sent, which
    depends on the data; grouped matrix products (bf16 weights) do not."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=12, num_key_value_heads=4,
        intermediate_size=inner, num_local_experts=experts, num_experts_per_tok=2, vocab_size=32000,
        output_router_logits=True, use_cache=False, experts_implementation=implementation,
    )  # fmt: skip
    with torch.device("cuda"):
        model = MixtralForCausalLM(config)
    if weights == "bf16":
        model.to(BF16)
    return _train(model, _tokens(batch, length, config.vocab_size), optimizer, precision=precision, style=style)
