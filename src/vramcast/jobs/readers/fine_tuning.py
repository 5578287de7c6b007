"""What fine-tuning tools for language models have in common: adapters, attention, second models, fused losses. Each
function adds to the data of a job; readers say only what their tool calls it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import VramcastError
from vramcast.jobs import hub_cache
from vramcast.jobs.folders import CONFIG, read_json
from vramcast.jobs.readers import hf_names
from vramcast.jobs.readers.documents import beside
from vramcast.trace import Note

Data = dict[str, Any]
Finish = Callable[[Data], Data]

TRAINER = {"zero_grad": "after-step", "outputs_live_until": "forward"}
"""How Hugging Face's Trainer runs a step."""
REFERENCE = "reference"
"""The component that a preference or a policy is compared with."""
_EXACT = ("eager", "sdpa")
_VISUAL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")
"""Kinds of models whose vision tower is called `visual`."""
_WITH_CONNECTOR = ("idefics3", "smolvlm")
_LAYERS_OF_LANGUAGE = r".*language_model.*\.(?:[qkvo]|gate|up|down)_proj"


def model_named(name: str | None, folder: Path) -> str | None:
    """A folder beside the config, or else what the config says: a Hub name stays as it is."""
    return None if name is None else str(beside(name, folder))


def attention(name: str | None, notes: list[Note]) -> Data:
    """The argument of from_config; kernels that keep what the flash kernel of sdpa keeps are predicted as that."""
    if name is None or name == "auto":
        return {}
    if name not in _EXACT:
        notes.append(Note("attention", f"{name} is predicted as sdpa, whose flash kernel keeps the same"))
        name = "sdpa"
    return {"arguments": {"attn_implementation": name}}


def lora_component(lora: Mapping[str, Any], quantization: str | None = None) -> Data:
    component: Data = {"mode": "lora", "lora": {key: value for key, value in lora.items() if value is not None}}
    return {**component, "quantization": quantization} if quantization else component


def trainer_optimizer(name: str, key: str, unsupported: dict[str, str]) -> Data:
    """One of the names of TrainingArguments' `optim`, which the caller knows to be one."""
    if name in hf_names.OPTIMIZERS:
        return {**hf_names.OPTIMIZERS[name], "decay_groups": True}
    unsupported["optimizer"] = f"{key}: {name} is not modelled; name another with --optimizer to predict with that"
    return {**hf_names.OPTIMIZERS["adamw_torch"], "decay_groups": True}


def chain(*steps: Finish | None) -> Finish:
    """What is done one after the other when all parts are together."""

    def finish(data: Data) -> Data:
        for step in steps:
            data = step(data) if step else data
        return data

    return finish


def change_model(data: Data, changes: Mapping[str, Any]) -> Data:
    model = {**data["components"].get("model", {}), **changes}
    return {**data, "components": {**data["components"], "model": model}}


def without_cache(data: Data) -> Data:
    """Trainers switch the cache of keys and values off, which a plain loop would fill."""
    model = data["components"].get("model", {})
    if not model.get("transformers"):
        return data
    return change_model(data, {"config": {"use_cache": False, **model.get("config", {})}})


def model_config(data: Data) -> Data:
    """config.json of the model, with the changes of the job; {} where there is none."""
    config = _config_json(data)
    text = config.get("text_config")
    changes = data["components"].get("model", {}).get("config", {})
    return {**config, **(text if isinstance(text, dict) else {}), **changes} if config else {}


def _config_json(data: Data) -> Data:
    model = data["components"].get("model", {})
    try:
        return read_json(Path(hub_cache.folder_of(str(model["transformers"]))) / CONFIG)
    except (KeyError, VramcastError):
        return {}  # whoever builds the model says what is wrong


def freeze_parts(*, language: bool, vision: bool, projector: bool) -> Finish:
    """Of a model that sees, the parts that stay as they are; adapters on all linear layers leave them out, too."""

    def finish(data: Data) -> Data:
        config, model = _config_json(data), data["components"].get("model", {})
        if "vision_config" not in config:
            return data
        parts = _parts_that_see(str(config.get("model_type") or ""))
        frozen = [name for name, is_frozen in zip(parts, (language, vision, projector), strict=True) if is_frozen]
        patterns = [pattern for name in frozen for pattern in parts[name]]
        patterns += ["audio"] if vision and isinstance(config.get("audio_config"), dict) else []
        if model.get("mode") == "lora":
            targets = (model.get("lora") or {}).get("targets")
            if language or not vision or targets not in ("all-linear", ["all-linear"]):
                return data
            return change_model(data, {"lora": {**model["lora"], "targets": _LAYERS_OF_LANGUAGE}})
        if not patterns or model.get("freeze") or model.get("train_only"):
            return data
        return change_model(data, {"freeze": patterns})

    return finish


def _parts_that_see(model_type: str) -> dict[str, list[str]]:
    """Names of parameters in transformers' models, by part."""
    if model_type.startswith(_VISUAL):
        return {
            "language": ["language_model"], "vision": ["visual.patch_embed", "visual.blocks"],
            "projector": ["visual.merger"],
        }  # fmt: skip
    connector = "connector" if model_type in _WITH_CONNECTOR else "multi_modal_projector"
    return {"language": ["language_model"], "vision": ["vision"], "projector": [connector]}


def fused_loss(data: Data) -> Data:
    """Head and cross-entropy in pieces, so many as Liger's fused kernel makes: vocabulary over width."""
    config = model_config(data)
    vocabulary, width = config.get("vocab_size"), config.get("hidden_size")
    if type(vocabulary) is not int or type(width) is not int or width < 1:
        return data
    return {**data, "loss": [{"kind": "model", "chunks": max(1, min(4096, math.ceil(vocabulary / width)))}]}


def fused_loss_note(what: str, where: str) -> Note:
    text = f"{what}: head and cross-entropy are predicted in pieces: the logits never lie on the card as a whole"
    return Note("fused loss", text, where)


def preferences(*, reference: str, upcast: bool = False, likelihood: bool = False) -> Finish:
    """DPO: chosen and rejected texts in one batch. `reference`: copy (a second model), adapter (the same model without
    its adapters) or none (its probabilities are known beforehand). `upcast`: logits are copied to fp32. `likelihood`:
    the cross-entropy of the chosen texts is added (ORPO, CPO)."""

    def finish(data: Data) -> Data:
        more = {"upcast": True} if upcast else {}
        loss = [{**_compared("preference", reference), **more}]
        loss += [{**_compared("likelihood", "none"), **more}] if likelihood else []
        return _with_reference({**data, "inputs": _tokens(data, "2 * batch"), "loss": loss}, reference)

    return finish


def desirability(*, reference: str, upcast: bool, notes: list[Note], where: str) -> Finish:
    """KTO: texts that are wanted or not, each for itself, and a reference as above."""
    text = (
        "the passes that KTO estimates a divergence with, without gradients, come before: they take time, which is not "
        "counted, and no more memory; newer versions of TRL compute head and loss in pieces and take less"
    )
    notes.append(Note("KTO", text, where))

    def finish(data: Data) -> Data:
        loss = {**_compared("desirability", reference), **({"upcast": True} if upcast else {})}
        return _with_reference({**data, "inputs": _tokens(data, "batch"), "loss": [loss]}, reference)

    return finish


def rewards(data: Data) -> Data:
    """A reward model: one score for each text, chosen and rejected ones in one batch (TRL's RewardTrainer)."""
    loss = {"kind": "ranking", "prediction": "model.logits"}
    return _with_scores({**data, "inputs": _tokens(data, "2 * batch"), "loss": [loss]}, 1)


def classification(labels: int | None) -> Finish:
    """Texts that get a label: a head with as many scores as there are labels, 2 where none are said."""
    return lambda data: _with_scores(data, labels)


def reranking(texts: int, *, by_word: bool) -> Finish:
    """One score for each of the texts of a sample, which are one batch. `by_word`: the model's own head says it with
    the word that it puts at the end (yes or no)."""

    def finish(data: Data) -> Data:
        loss = {"kind": "mean", "prediction": "model.logits"}
        data = {**data, "inputs": _tokens(data, f"{texts} * batch"), "loss": [loss]}
        return change_model(data, {"options": {"logits_to_keep": 1}}) if by_word else _with_scores(data, 1)

    return finish


def embeddings(data: Data) -> Data:
    """Texts beside those that they belong to, as vectors: the last hidden states, without a head."""
    loss = {"kind": "mean", "prediction": "model.last_hidden_state"}
    data = {**data, "inputs": _tokens(data, "2 * batch"), "loss": [loss]}
    return change_model(data, {"task": "feature-extraction"})


def _with_scores(data: Data, labels: int | None) -> Data:
    """The head learns beside adapters (peft's TaskType.SEQ_CLS names both)."""
    model = data["components"].get("model", {})
    scores = {} if labels is None else {"num_labels": labels}
    head: Data = {
        "task": "sequence-classification",
        "config": {**model.get("config", {}), **scores, "pad_token_id": 0},
    }
    if model.get("mode") == "lora":
        lora = model.get("lora") or {}
        head["lora"] = {**lora, "trained_modules": [*(lora.get("trained_modules") or ()), "classifier", "score"]}
    return change_model(data, head)


def policy(*, reference: str, completion: int) -> Finish:
    """GRPO: prompts with the text that the model has generated; logits of the latter alone are computed."""

    def finish(data: Data) -> Data:
        data = {**data, "inputs": _tokens(data, "batch"), "loss": [_compared("policy", reference)]}
        data = change_model(data, {"options": {"logits_to_keep": completion + 1}})
        return _with_reference(data, reference, {"options": {"logits_to_keep": completion + 1}})

    return finish


def _compared(kind: str, reference: str) -> Data:
    target = {} if reference == "none" else {"target": f"{REFERENCE}.logits"}
    return {"kind": kind, "prediction": "model.logits", **target}


def _tokens(data: Data, rows: str) -> Data:
    vocabulary = model_config(data).get("vocab_size")
    below = {"below": vocabulary} if type(vocabulary) is int and vocabulary > 0 else {}
    return {
        "input_ids": {"shape": [rows, "sequence"], "dtype": "int64", **below},
        "attention_mask": {"shape": [rows, "sequence"], "dtype": "int64", "fill": "ones"},
    }


def _with_reference(data: Data, reference: str, more: Mapping[str, Any] | None = None) -> Data:
    model = data["components"].get("model", {})
    if reference == "none":
        return data
    if reference == "adapter":
        second: Data = {"same_as": "model", "mode": model.get("mode", "trained"), "no_grad": True}
    else:
        kept = {key: model[key] for key in ("dtype", "quantization", "keep_fp32") if key in model}
        second = {"copy_of": "model", "mode": "frozen", **kept}
    return {**data, "components": {**data["components"], REFERENCE: {**second, "role": "teacher", **(more or {})}}}


def vllm_share(share: float, *, sleeps: bool, notes: list[Note], where: str) -> Data:
    """vLLM on the same card takes its share of the memory; PyTorch has what is left."""
    if sleeps:
        text = f"vLLM sleeps while the model is trained: its {share:.0%} of the card are counted as free then"
        notes.append(Note("vLLM", text, where))
        return {}
    if not 0 < share < 1:
        return {}
    notes.append(Note("vLLM", f"it holds {share:.0%} of the same card; training has the rest (target.fraction)", where))
    return {"target": {"fraction": round(1 - share, 6)}}


def evaluation(batch: int, **sizes: int) -> Data:
    return {"evaluation": {"when": "between", "batch": batch, **({"sizes": sizes} if sizes else {})}}


DEFAULT_COMPLETION = 512
"""Tokens that TRL's GRPO generates at most, where nothing is said (GRPOConfig.max_completion_length)."""
_DEFAULT_PROMPT = 512
PREFERENCE_NOTE = "chosen and rejected texts of a batch go through the model together, each as long as the longest text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """What TRL's GRPOConfig says of memory."""

    completion: int = DEFAULT_COMPLETION
    prompt: int | None = None
    beta: float = 0.0
    has_adapter: bool = False
    vllm: bool = False
    colocated: bool = True
    share: float = 0.3
    sleeps: bool = False


def grpo(settings: Grpo, sizes: dict[str, int], notes: list[Note], where: str) -> tuple[Data, Finish]:
    """The sizes are those of prompt and completion together."""
    prompt = settings.prompt or _DEFAULT_PROMPT
    length = prompt + settings.completion
    if settings.prompt is None:
        text = f"prompts of {prompt} tokens, which the config does not say: with {settings.completion} generated ones "
        notes.append(Note("assumed", f"{text}a sequence of {length} (--seq)", where))
    reference = "none" if not settings.beta else "adapter" if settings.has_adapter else "copy"
    data: Data = {"sizes": {**sizes, "sequence": length}}
    if settings.vllm and settings.colocated:
        data |= vllm_share(settings.share, sleeps=settings.sleeps, notes=notes, where=where)
    elif settings.vllm:
        notes.append(Note("vLLM", "it generates on other cards; none of its memory is counted", where))
    else:
        text = "the model generates text before the step: its keys and values, which are gone then, are not counted"
        notes.append(Note("generation", text, where))
    return data, policy(reference=reference, completion=settings.completion)
