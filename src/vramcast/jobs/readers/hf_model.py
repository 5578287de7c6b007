"""What Hugging Face training arguments say of the model: the head, attention, LoRA, quantized weights. The names are
those of TRL's ModelConfig and of LLaMA-Factory, which has its own."""

from __future__ import annotations

from typing import Any

from vramcast.jobs.readers.keys import Keys
from vramcast.trace import Note

_EXACT = ("eager", "sdpa")
_STAGES = ("pt", "sft")
_OTHER_STAGES = ("rm", "ppo", "dpo", "kto")
_BITS = {4: "nf4", 8: "int8"}
_DEFAULT_RANK = {"trl": 16, "llama-factory": 8}


def component_from(keys: Keys, task: str | None, notes: list[Note]) -> dict[str, Any]:
    """The changes to the model's component; {} for none."""
    component: dict[str, Any] = {"task": task} if task else {}
    attention = keys.text("attn_implementation")
    if attention is not None:
        if attention not in _EXACT:
            notes.append(Note("attention", f"{attention} is predicted as sdpa, whose flash kernel keeps the same"))
            attention = "sdpa"
        component["arguments"] = {"attn_implementation": attention}
    lora = _llama_factory_lora(keys) if "finetuning_type" in keys else _trl_lora(keys)
    if lora is not None:
        component |= {"mode": "lora", "lora": {key: value for key, value in lora.items() if value is not None}}
    bits = keys.whole("quantization_bit", least=2, most=8)
    if keys.flag("load_in_4bit"):
        bits = 4
        keys.ignore("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    if keys.flag("load_in_8bit"):
        bits = 8
    if bits is not None:
        if bits not in _BITS:
            keys.fail("quantization_bit", f"4 or 8 is needed, not {bits}")
        component["quantization"] = _BITS[bits]
    return component


def llama_factory(keys: Keys, data: dict[str, Any], unsupported: dict[str, str]) -> dict[str, Any]:
    """LLaMA-Factory's habits: blocks are checkpointed unless told not to, and a frozen base lies in half precision."""
    kind = keys.text("finetuning_type", ("lora", "full", "freeze", "oft"))
    if kind is None:
        return data
    stage = keys.text("stage", (*_STAGES, *_OTHER_STAGES)) or "sft"
    if stage not in _STAGES:
        unsupported["step"] = f"stage: {stage} needs a second model or generated text, which is not modelled"
    if kind not in ("lora", "full"):
        unsupported["components"] = f"finetuning_type: {kind} is not modelled; --set components.model.train_only=[...]"
    keys.ignore("template", "dataset", "dataset_dir", "max_samples", "plot_loss")
    if not keys.flag("disable_gradient_checkpointing"):
        data = {**data, "checkpointing": {"scope": "all"}}
    preset = data["precision"].get("preset")
    if preset and (kind == "lora" or keys.flag("pure_bf16")):
        data = {**data, "precision": {**data["precision"], "weights": preset}}
    return data


def _trl_lora(keys: Keys) -> dict[str, Any] | None:
    rank, alpha = keys.whole("lora_r"), keys.number("lora_alpha")
    dropout, targets = keys.number("lora_dropout"), keys.names("lora_target_modules")
    whole = keys.names("lora_modules_to_save")
    wanted = keys.flag("use_peft")
    if not (rank is not None if wanted is None else wanted):
        return None
    adapted: list[str] | str | None = "all-linear" if targets == ["all-linear"] else targets
    rank = rank or _DEFAULT_RANK["trl"]
    return {"rank": rank, "alpha": alpha, "dropout": dropout, "targets": adapted, "trained_modules": whole}


def _llama_factory_lora(keys: Keys) -> dict[str, Any] | None:
    rank, alpha, dropout = keys.whole("lora_rank"), keys.number("lora_alpha"), keys.number("lora_dropout")
    targets = keys.text("lora_target") or "all"
    if keys.take("finetuning_type") != "lora":
        return None
    adapted = "all-linear" if targets == "all" else [name.strip() for name in targets.split(",")]
    return {"rank": rank or _DEFAULT_RANK["llama-factory"], "alpha": alpha, "dropout": dropout, "targets": adapted}
