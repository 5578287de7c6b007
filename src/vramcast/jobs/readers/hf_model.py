"""What Hugging Face training arguments say of the model: the head, attention, LoRA, quantized weights. The names are
those of TRL's ModelConfig."""

from __future__ import annotations

from typing import Any

from vramcast.jobs.readers.keys import Keys
from vramcast.trace import Note

_EXACT = ("eager", "sdpa")
_BITS = {4: "nf4", 8: "int8"}
_DEFAULT_RANK = 16


def component_from(keys: Keys, task: str | None, notes: list[Note], unsupported: dict[str, str]) -> dict[str, Any]:
    """The changes to the model's component; {} for none."""
    component: dict[str, Any] = {"task": task} if task else {}
    attention = keys.text("attn_implementation")
    if attention is not None:
        if attention not in _EXACT:
            notes.append(Note("attention", f"{attention} is predicted as sdpa, whose flash kernel keeps the same"))
            attention = "sdpa"
        component["arguments"] = {"attn_implementation": attention}
    lora = _trl_lora(keys)
    if lora is not None:
        component |= {"mode": "lora", "lora": {key: value for key, value in lora.items() if value is not None}}
    bits = None
    if keys.flag("load_in_4bit"):
        bits = 4
        keys.ignore("bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    if keys.flag("load_in_8bit"):
        bits = 8
    if bits is not None:
        component["quantization"] = _BITS[bits]
    return component


def _trl_lora(keys: Keys) -> dict[str, Any] | None:
    rank, alpha = keys.whole("lora_r"), keys.number("lora_alpha")
    dropout, targets = keys.number("lora_dropout"), keys.names("lora_target_modules")
    whole = keys.names("lora_modules_to_save")
    wanted = keys.flag("use_peft")
    if not (rank is not None if wanted is None else wanted):
        return None
    keys.ignore("use_rslora")
    adapted: list[str] | str | None = "all-linear" if targets == ["all-linear"] else targets
    rank = rank or _DEFAULT_RANK
    return {
        "rank": rank, "alpha": alpha, "dropout": dropout, "targets": adapted, "trained_modules": whole,
        "dora": keys.flag("use_dora") or None, "parameters": keys.names("lora_target_parameters"),
    }  # fmt: skip
