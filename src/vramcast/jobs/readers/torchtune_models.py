"""Sizes of torchtune's models, as data (torchtune/models/*/_model_builders.py), and the transformers class that is the
same network."""

from __future__ import annotations

from typing import Any

_FAMILIES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "llama2": ("llama", "LlamaForCausalLM", 32_000, {}),
    "llama3": ("llama", "LlamaForCausalLM", 128_256, {}),
    "mistral": ("llama", "LlamaForCausalLM", 32_000, {}),
    "phi3": ("llama", "LlamaForCausalLM", 32_064, {}),
    "phi4": ("llama", "LlamaForCausalLM", 100_352, {}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", 151_936, {}),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", 151_936, {"head_dim": 128}),
    "gemma": ("gemma", "GemmaForCausalLM", 256_000, {"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", 256_000, {"tie_word_embeddings": True}),
}
"""model_type, class, vocabulary, what else all of the family have."""

_TIED = {"tie_word_embeddings": True}
_SIZES: dict[str, tuple[str, int, int, int, int, int, dict[str, Any]]] = {
    "llama2_7b": ("llama2", 32, 32, 32, 4096, 11008, {}),
    "llama2_13b": ("llama2", 40, 40, 40, 5120, 13824, {}),
    "llama2_70b": ("llama2", 80, 64, 8, 8192, 28672, {}),
    "llama3_8b": ("llama3", 32, 32, 8, 4096, 14336, {}),
    "llama3_70b": ("llama3", 80, 64, 8, 8192, 28672, {}),
    "llama3_1_8b": ("llama3", 32, 32, 8, 4096, 14336, {}),
    "llama3_1_70b": ("llama3", 80, 64, 8, 8192, 28672, {}),
    "llama3_1_405b": ("llama3", 126, 128, 8, 16384, 53248, {}),
    "llama3_2_1b": ("llama3", 16, 32, 8, 2048, 8192, _TIED),
    "llama3_2_3b": ("llama3", 28, 24, 8, 3072, 8192, _TIED),
    "llama3_3_70b": ("llama3", 80, 64, 8, 8192, 28672, {}),
    "mistral_7b": ("mistral", 32, 32, 8, 4096, 14336, {}),
    "phi3_mini": ("phi3", 32, 32, 32, 3072, 8192, {}),
    "phi4_14b": ("phi4", 40, 40, 10, 5120, 17920, {}),
    "qwen2_0_5b": ("qwen2", 24, 14, 2, 896, 4864, _TIED),
    "qwen2_1_5b": ("qwen2", 28, 12, 2, 1536, 8960, _TIED),
    "qwen2_7b": ("qwen2", 28, 28, 4, 3584, 18944, {"vocab_size": 152_064}),
    "qwen2_5_0_5b": ("qwen2", 24, 14, 2, 896, 4864, _TIED),
    "qwen2_5_1_5b": ("qwen2", 28, 12, 2, 1536, 8960, _TIED),
    "qwen2_5_3b": ("qwen2", 36, 16, 2, 2048, 11008, _TIED),
    "qwen2_5_7b": ("qwen2", 28, 28, 4, 3584, 18944, {"vocab_size": 152_064}),
    "qwen2_5_14b": ("qwen2", 48, 40, 8, 5120, 13824, {"vocab_size": 152_064}),
    "qwen2_5_32b": ("qwen2", 64, 40, 8, 5120, 27648, {"vocab_size": 152_064}),
    "qwen2_5_72b": ("qwen2", 80, 64, 8, 8192, 29568, {"vocab_size": 152_064}),
    "qwen3_0_6b": ("qwen3", 28, 16, 8, 1024, 3072, _TIED),
    "qwen3_1_7b": ("qwen3", 28, 16, 8, 2048, 6144, _TIED),
    "qwen3_4b": ("qwen3", 36, 32, 8, 2560, 9728, _TIED),
    "qwen3_8b": ("qwen3", 36, 32, 8, 4096, 12288, {}),
    "qwen3_14b": ("qwen3", 40, 40, 8, 5120, 17408, {}),
    "qwen3_32b": ("qwen3", 64, 64, 8, 5120, 25600, {}),
    "gemma_2b": ("gemma", 18, 8, 1, 2048, 16384, {"head_dim": 256}),
    "gemma_7b": ("gemma", 28, 16, 16, 3072, 24576, {"head_dim": 256}),
    "gemma2_2b": ("gemma2", 26, 8, 4, 2304, 9216, {"head_dim": 256}),
    "gemma2_9b": ("gemma2", 42, 16, 8, 3584, 14336, {"head_dim": 256}),
    "gemma2_27b": ("gemma2", 46, 32, 16, 4608, 36864, {"head_dim": 128}),
}
"""Builder → family, layers, heads, heads of keys, width, width of the MLP, what else differs."""
NAMES = tuple(_SIZES)


def plain_name(builder: str) -> str:
    """lora_qwen3_8b_instruct is qwen3_8b with adapters."""
    name = builder.removeprefix("q").removeprefix("lora_") if builder.startswith(("lora_", "qlora_")) else builder
    return name.removesuffix("_base").removesuffix("_instruct")


def config_of(name: str) -> dict[str, Any] | None:
    """The config.json of the same network in transformers."""
    if name not in _SIZES:
        return None
    family, layers, heads, groups, width, inner, more = _SIZES[name]
    model_type, class_name, vocabulary, common = _FAMILIES[family]
    return {
        "model_type": model_type, "architectures": [class_name], "vocab_size": vocabulary, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": groups, "hidden_size": width, "intermediate_size": inner,
        **common, **more,
    }  # fmt: skip
