"""ms-swift: `swift sft`, `swift pt` and `swift rlhf`, as a command or as the YAML of `--config`. TrainingArguments with
names and defaults of its own (swift/arguments/*.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.jobs.readers import Part, Reading, Request, combine, fine_tuning, hf_arguments, hf_edits, hf_names
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys
from vramcast.trace import Note

NAME = "ms-swift config"
STEPS = hf_edits.STEPS
edits, nested_files = hf_edits.edits, hf_edits.nested_files

MARKS = ("tuner_type", "train_type", "sft_type", "rlhf_type")
_SAMPLES_PER_STEP = 16
"""What accumulation is chosen for where it is left out."""
_BUCKETS = {"allgather_bucket_size": 2e8, "reduce_bucket_size": 2e8, "overlap_comm": False}
_BY_WIDTH = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
_OF_STAGE: dict[int, dict[str, Any]] = {
    0: {}, 1: _BUCKETS, 2: _BUCKETS, 3: {"overlap_comm": False, **dict.fromkeys(_BY_WIDTH, "auto")}
}  # fmt: skip
_ZERO: dict[str, dict[str, Any]] = {
    name: {
        "zero_optimization": {
            "stage": stage, **_OF_STAGE[stage], **({"offload_optimizer": {"device": "cpu"}} if offload else {})
        }
    }
    for name, stage, offload in (
        ("zero0", 0, False), ("zero1", 1, False), ("zero2", 2, False), ("zero3", 3, False), ("zero2_offload", 2, True),
        ("zero3_offload", 3, True),
    )
}  # fmt: skip
"""DeepSpeed configs that it brings along."""
_TASKS = ("causal_lm", "seq_cls", "embedding", "reranker", "generative_reranker")
_TEXTS_TO_RANK = 8
"""One that fits and up to seven that do not (MAX_POSITIVE_SAMPLES, MAX_NEGATIVE_SAMPLES)."""
_ATTENTION = {
    "flash_attn": "flash_attention_2",
    "flash_attention_2": "flash_attention_2",
    "sdpa": "sdpa",
    "eager": "eager",
}
_SAME_STATE = ("default", "lorap", "multimodal")
"""Of its own optimizers, those that give parts of the model other learning rates."""
_NOT_MODELLED = {
    "freeze_parameters_ratio": ("components", "say what stays frozen: --set 'components.model.freeze=[...]'"),
    "freeze_parameters_regex": ("components", "say what stays frozen: --set 'components.model.freeze=[...]'"),
    "trainable_parameters_regex": ("components", "say what learns: --set 'components.model.train_only=[...]'"),
    "use_galore": ("optimizer", "GaLore is not modelled; name another with --optimizer"),
    "use_muon": ("optimizer", "Muon is not modelled; name another with --optimizer"),
    "lisa_activated_layers": ("components", "LISA's changing layers are not modelled; leave it out"),
    "fp8": ("precision", "fp8 is not modelled; leave it out"),
    "teacher_model": ("step", "a teacher beside the model is not modelled here; a vramcast.yaml can say it"),
    "chord_sft_per_device_train_batch_size": ("step", "a second batch in each step is not modelled; leave it out"),
}
_KNOWN = hf_names.WITHOUT_EFFECT | frozenset((
    "dataset", "val_dataset", "system", "model_author", "model_name", "load_from_cache_file", "template", "loss_scale",
    "split_dataset_ratio", "use_hf", "model_type", "max_pixels", "truncation_strategy", "add_version", "lazy_tokenize",
    "beta", "rpo_alpha", "loss_type", "reward_funcs", "num_generations", "temperature", "log_completions", "deepspeed",
    "enable_dft_loss", "check_model", "aligner_lr", "vit_lr", "packing", "padding_free", "use_rslora",
    "new_special_tokens", "columns", "response_length", "problem_type", "eval_dataset", "eval_dataset_args",
    "eval_limit", "eval_generation_config", "label_names", "use_chat_template", "router_aux_loss_coef", "experts_impl",
))  # fmt: skip


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml", ".json")
    return "model" in keys and any(name in keys for name in MARKS)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    document = read_document(path)
    return part_from(document.data if isinstance(document.data, dict) else {}, str(path), path.parent, request)


def part_from(
    flags: Mapping[str, Any], where: str, folder: Path, request: Request, verb: str = "sft", processes: int = 1
) -> Part:
    said = {str(name): value for name, value in flags.items()}
    zero = said.get("deepspeed")
    if isinstance(zero, str) and zero in _ZERO:
        said["deepspeed"] = _ZERO[zero]
    keys = Keys(said, where)
    batch = keys.whole("per_device_train_batch_size") or 1
    defaults: dict[str, Any] = {
        "model_name_or_path": said.get("model"), "per_device_train_batch_size": 1, "gradient_checkpointing": True,
        "gradient_accumulation_steps": max(1, math.ceil(_SAMPLES_PER_STEP / batch / processes)),
    }  # fmt: skip
    dtype = keys.text("torch_dtype", (*hf_names.DTYPES, "auto")) or "bfloat16"
    defaults["torch_dtype"] = dtype
    defaults |= {"bf16": True} if dtype == "bfloat16" and not keys.take("fp16") else {}
    # It computes in fp16 where weights are fp32, too.
    defaults |= {"fp16": True} if dtype in ("float16", "float32") and not keys.take("bf16") else {}
    if keys.take("val_dataset") or keys.take("split_dataset_ratio"):
        defaults["eval_strategy"] = "steps"
    keys.set_defaults(defaults)
    keys.ignore("model", "model_name")
    return hf_arguments.part_from(keys, folder, request, None, _Dialect(verb))


class _Dialect(hf_arguments.Dialect):
    name = NAME
    known = _KNOWN

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def component(self, keys: Keys, task: str | None, notes: list[Note], unsupported: dict[str, str]) -> dict[str, Any]:
        kind = next((text for name in MARKS[:3] if (text := keys.text(name))), "lora")
        said = keys.text("attn_impl")
        component = fine_tuning.attention(_ATTENTION.get(said, said) if said else None, notes)
        bits, method = keys.whole("quant_bits", least=1, most=8), keys.text("quant_method")
        keys.ignore("bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
        quantization = {4: "nf4", 8: "int8"}.get(bits or 0)
        if bits is not None and (quantization is None or method not in (None, "bnb")):
            unsupported["components"] = f"quant_bits: {bits} by {method} is not modelled; 4 and 8 by bnb are"
        for name, (key, text) in _NOT_MODELLED.items():
            if keys.take(name):
                unsupported[key] = f"{name}: {text}"
        own = keys.text("optimizer", (*_SAME_STATE, "galore", "muon", "muonclip"))
        if own is not None and own not in _SAME_STATE:
            unsupported["optimizer"] = f"optimizer: {own} is not modelled; name another with --optimizer"
        if keys.flag("vit_gradient_checkpointing") is False and keys.flag("gradient_checkpointing") is not False:
            text = "vit_gradient_checkpointing: the vision tower is predicted checkpointed, too, and takes more without"
            notes.append(Note("not modelled", text, keys.where))
        if kind == "lora":
            return {**component, **fine_tuning.lora_component(_lora(keys), quantization)}
        if kind != "full":
            unsupported["components"] = f"tuner_type: {kind} is not modelled; lora and full are"
        frozen, trained = keys.names("freeze_parameters"), keys.names("trainable_parameters")
        component |= {"freeze": [f"{name}*" for name in frozen]} if frozen else {}
        return component | ({"train_only": [f"{name}*" for name in trained]} if trained else {})

    def change(
        self, keys: Keys, data: dict[str, Any], notes: list[Note], unsupported: dict[str, str]
    ) -> tuple[dict[str, Any], fine_tuning.Finish | None]:
        if (keys.whole("sequence_parallel_size") or 1) > 1:
            unsupported["gpus"] = (
                "sequence_parallel_size above 1 is not modelled; --set gpus.count=1 predicts without it"
            )
        if "sequence" not in data["sizes"]:
            notes.append(Note("assumed", "texts as long as the model takes: say the longest with --seq", keys.where))
        if keys.flag("packing"):
            notes.append(Note("packing", "samples are packed: batches are full", keys.where))
        kind = keys.text("rlhf_type") or ("dpo" if self._verb == "rlhf" else None)
        has_adapter = data.get("components", {}).get("model", {}).get("mode") == "lora"
        vision, projector = (keys.flag(name) is not False for name in ("freeze_vit", "freeze_aligner"))
        frozen = fine_tuning.freeze_parts(language=bool(keys.flag("freeze_llm")), vision=vision, projector=projector)
        if kind is None:
            return data, fine_tuning.chain(frozen, _of_task(keys, notes))
        if kind == "grpo":
            data, finish = self._grpo(keys, data, has_adapter, notes)
            return data, fine_tuning.chain(frozen, finish)
        if kind not in ("dpo", "orpo", "simpo", "cpo", "kto", "rm"):
            unsupported["step"] = f"rlhf_type: {kind} is not modelled; dpo, orpo, simpo, cpo, kto, rm and grpo are"
            return data, None
        own = keys.text("ref_model")
        reference = "copy" if own or not has_adapter else "adapter"
        if kind == "kto":
            step = fine_tuning.desirability(reference=reference, upcast=False, notes=notes, where=keys.where)
            return data, fine_tuning.chain(frozen, step)
        notes.append(Note("preferences", fine_tuning.PREFERENCE_NOTE, keys.where))
        if kind == "rm":
            return data, fine_tuning.chain(frozen, fine_tuning.rewards)
        likely = kind in ("orpo", "cpo") or keys.number("rpo_alpha") is not None
        compared = fine_tuning.preferences(reference=reference if kind == "dpo" else "none", likelihood=likely)
        return data, fine_tuning.chain(frozen, compared)

    def _grpo(
        self, keys: Keys, data: dict[str, Any], has_adapter: bool, notes: list[Note]
    ) -> tuple[dict[str, Any], fine_tuning.Finish]:
        beta, share = keys.number("beta"), keys.number("vllm_gpu_memory_utilization")
        settings = fine_tuning.Grpo(
            completion=keys.whole("max_completion_length") or fine_tuning.DEFAULT_COMPLETION,
            prompt=data["sizes"].get("sequence"),
            beta=0.04 if beta is None else beta,
            has_adapter=has_adapter,
            vllm=bool(keys.flag("use_vllm")),
            colocated=keys.text("vllm_mode", ("server", "colocate")) != "server",
            share=0.9 if share is None else share,
            sleeps=bool(keys.whole("sleep_level", least=0)),
        )
        keys.ignore("vllm_max_model_len", "vllm_tensor_parallel_size", "offload_model", "offload_optimizer")
        more, finish = fine_tuning.grpo(settings, data["sizes"], notes, keys.where)
        return {**data, **more}, finish


def _of_task(keys: Keys, notes: list[Note]) -> fine_tuning.Finish | None:
    """What is learned, where it is not the next word."""
    task, labels = keys.text("task_type", _TASKS), keys.whole("num_labels")
    if task == "seq_cls":
        return fine_tuning.classification(labels)
    if task == "embedding":
        text = "a text and the one that it belongs to go through the model together; negative ones take more (--batch)"
        notes.append(Note("embedding", text, keys.where))
        return fine_tuning.embeddings
    if task in ("reranker", "generative_reranker"):
        text = f"{_TEXTS_TO_RANK} texts for each sample, the most that are taken where nothing else is said (--batch)"
        notes.append(Note("reranker", text, keys.where))
        return fine_tuning.reranking(_TEXTS_TO_RANK, by_word=task == "generative_reranker")
    return None


def _lora(keys: Keys) -> dict[str, Any]:
    targets, pattern = keys.names("target_modules") or ["all-linear"], keys.text("target_regex")
    dtype = keys.text("lora_dtype", hf_names.DTYPES)
    dropout = keys.number("lora_dropout")
    return {
        "rank": keys.whole("lora_rank", most=65_536) or 8,
        "alpha": keys.number("lora_alpha") or 32,
        "dropout": 0.05 if dropout is None else dropout,
        "dora": keys.flag("use_dora") or None,
        "targets": pattern or ("all-linear" if "all-linear" in targets else targets),
        "parameters": keys.names("target_parameters"),
        "trained_modules": keys.names("modules_to_save"),
        "dtype": hf_names.DTYPES[dtype] if dtype else None,
    }
