"""What a transformers folder says of its model without building it, for knobs that reach inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.folders import CONFIG, read_json
from vramcast.jobs.schema import Component, Job
from vramcast.jobs.text_length import longest_text

_CAUSAL = ("ForCausalLM", "LMHeadModel")
_BLOCKS = {
    "h": ("gpt2", "gpt_neo", "gptj", "bloom", "falcon", "gpt_bigcode", "codegen"),
    "layer": ("bert", "roberta", "xlm-roberta", "electra", "deberta-v2", "distilbert", "vit", "albert"),
    "layers": (
        "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3",
        "opt", "gpt_neox", "stablelm", "olmo", "olmo2", "starcoder2", "granite", "cohere",
    ),
}  # fmt: skip
"""What the list of blocks is called, by model_type."""
_WITH_FLASH = (*_BLOCKS["layers"], "gpt2", "gpt_neo", "gptj", "falcon", "gpt_bigcode", "distilbert", "vit")
"""Models that transformers runs with flash-attn, by model_type."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_LOGIT_BYTES = 4
_EMBEDDINGS = {"h": "wte", "layers": "embed"}


def single_language_model(job: Job) -> Component | None:
    """The one component that is trained, where it is a transformers folder."""
    trained = [part for part in job.components.values() if part.mode == "trained"]
    if job.task != "training" or len(trained) != 1 or trained[0].transformers is None:
        return None
    return trained[0]


def is_causal(part: Component) -> bool:
    name = part.class_name or ""
    if part.task is not None or name:
        return part.task == "causal-lm" or name.endswith(_CAUSAL) or name == "AutoModelForCausalLM"
    return any(str(architecture).endswith(_CAUSAL) for architecture in _config(part).get("architectures") or ())


def flash_attention_fits(part: Component) -> bool:
    return _config(part).get("model_type") in _WITH_FLASH


def model_type(part: Component) -> str:
    return str(_config(part).get("model_type") or "")


def has_experts(part: Component) -> bool:
    """Whether its feed-forward networks are experts, of which every token takes a few."""
    config = _config(part)
    return any(isinstance(count := config.get(key), int) and count > 1 for key in _EXPERTS)


def attention_layers(part: Component) -> list[str]:
    """Names of its projections in a model of the Llama kind, latent ones as in DeepSeek's."""
    if "kv_lora_rank" in _config(part):
        return ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    return ["q_proj", "k_proj", "v_proj", "o_proj"]


def vocabulary(part: Component) -> int | None:
    """How wide its logits are, where the config says so."""
    size = _config(part).get("vocab_size")
    return size if isinstance(size, int) else None


def rough_parameters(part: Component) -> int:
    """About how many parameters, counted from the config as for a Llama: embeddings and a head, and in every block
    attention with its key-value heads and a gated feed-forward network, or all its experts. 0 where the config does not
    say."""
    config = _config(part)
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads")
    sizes = [size for key in keys if isinstance(size := config.get(key), int) and size > 0]
    if len(sizes) < len(keys):
        return 0
    vocabulary_size, hidden, blocks, inner, heads = sizes
    said = config.get("num_key_value_heads")
    key_value_heads = said if isinstance(said, int) and said > 0 else heads
    attention = 2 * hidden * hidden + 2 * hidden * hidden * key_value_heads // heads
    tables = 1 if config.get("tie_word_embeddings") else 2
    if has_experts(part):
        of_one = config.get("moe_intermediate_size")
        inner = max(config.get(key) or 0 for key in _EXPERTS) * (of_one if isinstance(of_one, int) else inner)
    return tables * vocabulary_size * hidden + blocks * (attention + 3 * hidden * inner)


def rough_activations(part: Component, product_bytes: int, residual_bytes: int) -> int:
    """About how many bytes are kept of a token for the backward pass, as for a Llama: in every block four tensors of
    norms and the residual stream, four inputs and outputs of attention, and four times the width of the feed-forward
    network; at the end logits and their gradient in fp32. 0 where the config does not say."""
    config = _config(part)
    keys = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
    sizes = [size for key in keys if isinstance(size := config.get(key), int) and size > 0]
    if len(sizes) < len(keys):
        return 0
    hidden, blocks, inner, width = sizes
    block = 4 * hidden * (residual_bytes + product_bytes) + 4 * inner * product_bytes
    return blocks * block + 2 * width * _LOGIT_BYTES


def usual_length(part: Component) -> int:
    """The sequence that is taken where a job names none."""
    return longest_text(_config(part))


def block_patterns(part: Component) -> list[str]:
    """One for each block, in order; none where the names are not known."""
    config = _config(part)
    count = config.get("num_hidden_layers", config.get("n_layer"))
    blocks = _name_of_blocks(config)
    if blocks is None or not isinstance(count, int) or count < 2:
        return []
    return [f"*.{blocks}.{number}.*" for number in range(count)]


def embedding_patterns(part: Component) -> list[str]:
    pattern = _EMBEDDINGS.get(_name_of_blocks(_config(part)) or "")
    return [pattern] if pattern else []


def _name_of_blocks(config: dict[str, Any]) -> str | None:
    kind = config.get("model_type")
    return next((name for name, kinds in _BLOCKS.items() if kind in kinds), None)


def _config(part: Component) -> dict[str, Any]:
    try:
        return {**read_json(Path(part.transformers or "") / (part.subfolder or "") / CONFIG), **part.config}
    except UsageError:
        return {}
