"""Configurations of the language models in xMem's runs, as their publishers state them."""

from __future__ import annotations

from typing import Any

import transformers as hf


def build(name: str) -> Any:
    """The model with its language-modelling head, random weights, fp32."""
    config = CONFIGS[name]()
    kind = hf.AutoModelForSeq2SeqLM if config.is_encoder_decoder else hf.AutoModelForCausalLM
    return kind.from_config(config)


def _gpt2(**changes: Any) -> Any:
    return hf.GPT2Config(**changes)


def _cerebras_111m() -> Any:
    return hf.GPT2Config(n_embd=768, n_layer=10, n_head=12, n_inner=3072, n_positions=2048, activation_function="gelu")


def _gpt_neo_125m() -> Any:
    return hf.GPTNeoConfig(
        hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]],
        max_position_embeddings=2048, embed_dropout=0, attention_dropout=0, resid_dropout=0,
    )  # fmt: skip


def _opt_125m() -> Any:
    return hf.OPTConfig(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072, vocab_size=50272)


def _opt_350m() -> Any:
    return hf.OPTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, ffn_dim=4096, vocab_size=50272,
        word_embed_proj_dim=512, do_layer_norm_before=False,
    )  # fmt: skip


def _t5_small() -> Any:
    return hf.T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, vocab_size=32128,
                       decoder_start_token_id=0)  # fmt: skip


def _qwen3_4b() -> Any:
    return hf.Qwen3Config(
        hidden_size=2560, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=9728, vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=40960,
    )  # fmt: skip


def _deepseek_qwen_15b() -> Any:
    return hf.Qwen2Config(
        hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, intermediate_size=8960,
        vocab_size=151936, tie_word_embeddings=False, max_position_embeddings=131072,
    )  # fmt: skip


def _gemma2_2b() -> Any:
    return hf.Gemma2Config(
        hidden_size=2304, num_hidden_layers=26, num_attention_heads=8, num_key_value_heads=4, head_dim=256,
        intermediate_size=9216, vocab_size=256000, tie_word_embeddings=True,
    )  # fmt: skip


def _llama32_3b() -> Any:
    return hf.LlamaConfig(
        hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8, head_dim=128,
        intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True, max_position_embeddings=131072,
    )  # fmt: skip


CONFIGS = {
    "openai-community/gpt2": _gpt2,
    "distilbert/distilgpt2": lambda: _gpt2(n_layer=6),
    "cerebras/Cerebras-GPT-111M": _cerebras_111m,
    "EleutherAI/gpt-neo-125M": _gpt_neo_125m,
    "facebook/opt-125m": _opt_125m,
    "facebook/opt-350m": _opt_350m,
    "T5-small": _t5_small,
    "Qwen/Qwen3-4B": _qwen3_4b,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _deepseek_qwen_15b,
    "google/gemma-2-2b-it": _gemma2_2b,
    "meta-llama/Llama-3.2-3B-Instruct": _llama32_3b,
}


def load_classes() -> None:
    """Import the modelling code now: transformers loads a model's module at its first use."""
    for name in ("GPT2LMHeadModel", "GPTNeoForCausalLM", "OPTForCausalLM", "T5ForConditionalGeneration",
                 "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma2ForCausalLM", "LlamaForCausalLM"):  # fmt: skip
        getattr(hf, name)
