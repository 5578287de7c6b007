"""LLaMA-Factory's YAML, JSON or flags: TrainingArguments, with names and habits of its own (hparams/*.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.base.errors import UsageError
from vramcast.jobs.readers import Part, Reading, Request, combine, fine_tuning, hf_arguments, hf_edits, hf_names
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys
from vramcast.trace import Note

NAME = "LLaMA-Factory config"
STEPS = hf_edits.STEPS
edits, nested_files = hf_edits.edits, hf_edits.nested_files

MARKS = ("finetuning_type", "cutoff_len", "quantization_method", "lora_target", "pref_loss", "freeze_trainable_layers")
_TRAINS = ("do_train", "stage", "per_device_train_batch_size", "finetuning_type")
_STAGES = ("pt", "sft", "rm", "ppo", "dpo", "kto")
_KINDS = ("lora", "full", "freeze", "oft")
_DEFAULT_RANK, _DEFAULT_LENGTH, _DEFAULT_FREE_LAYERS = 8, 2048, 2
_ATTENTION = {"auto": None, "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3"}
_WITHOUT_REFERENCE = ("orpo", "simpo")
_OTHER_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon")
_NOT_MODELLED = {
    "mixture_of_depths": ("components", "mixture of depths is not modelled; leave it out"),
    "use_llama_pro": ("components", "layers that are added are not modelled; leave it out"),
    "use_unsloth": ("components", "unsloth's kernels are not modelled; leave it out to predict with transformers' own"),
    "shift_attn": ("components", "shifted sparse attention is not modelled; leave it out"),
    "use_kt": ("components", "experts in the computer's memory (ktransformers) are not modelled; leave it out"),
    "fp8": ("precision", "fp8 is not modelled; --precision bf16 predicts with that instead"),
    "use_mca": ("gpus", "Megatron's parallelism is not modelled; leave it out"),
    "use_megatron_bridge": ("gpus", "Megatron's parallelism is not modelled; leave it out"),
    "use_hyper_parallel": ("gpus", "its parallelism is not modelled; leave it out"),
    "use_asft_loss": ("step", "a loss with a second model is not modelled"),
}
_PARALLEL = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size", "context_parallel_size",
    "hyper_parallel_cp_size",
)  # fmt: skip
_NOTES = {
    "enable_liger_kernel": "Liger kernels are not modelled: logits and their gradients take less than is predicted",
    "use_unsloth_gc": "checkpoints in the computer's memory are not modelled: the card takes less than is predicted",
    "use_v1_kernels": "its own kernels keep about what is predicted, or less",
    "upcast_lmhead_output": "logits in fp32 are not modelled: they take up to twice as much",
    "use_dft_loss": "a loss that weighs tokens takes a little more than the usual one",
    "use_eaft_loss": "a loss that weighs tokens takes a little more than the usual one",
    "resize_vocab": "the vocabulary may grow by the tokens that are added",
    "pissa_init": "the decomposition that adapters begin with is not modelled",
}
_KNOWN = hf_names.WITHOUT_EFFECT | frozenset((
    "template", "dataset", "dataset_dir", "max_samples", "plot_loss", "adapter_name_or_path", "tokenized_path",
    "eval_dataset", "val_size", "loraplus_lr_ratio", "pref_beta", "pref_ftx", "dpo_label_smoothing",
    "kto_chosen_weight", "kto_rejected_weight", "simpo_gamma", "image_max_pixels", "video_max_pixels",
    "create_new_adapter", "mask_history",
    "train_on_prompt", "mix_strategy", "compute_accuracy", "disable_shuffling", "rope_scaling", "ray_num_workers",
    "infer_backend", "infer_dtype", "trust_remote_code", "preprocessing_batch_size", "use_swanlab", "tool_format",
))  # fmt: skip


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml", ".json")
    return (any(name in keys for name in MARKS) and "model" not in keys) or _is_not_training(keys)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    document = read_document(path)
    keys = Keys.of(document, str(path))
    if _is_not_training(document.data):
        raise UsageError(f"{path}: this LLaMA-Factory config is for inference or export: name one that trains (stage)")
    return part_from(keys, path.parent, request)


def part_from(keys: Keys, folder: Path, request: Request, task: str | None = None) -> Part:
    keys.set_defaults({"cutoff_len": _DEFAULT_LENGTH})
    return hf_arguments.part_from(keys, folder, request, task, _Dialect())


def _is_not_training(keys: Any) -> bool:
    """Its files for chat, evaluation and export name a model and a template, and nothing of a training."""
    is_its_own = isinstance(keys, dict) and "model_name_or_path" in keys and "template" in keys
    return is_its_own and not any(name in keys for name in _TRAINS)


class _Dialect(hf_arguments.Dialect):
    name = NAME
    known = _KNOWN

    def component(self, keys: Keys, task: str | None, notes: list[Note], unsupported: dict[str, str]) -> dict[str, Any]:
        kind = keys.text("finetuning_type", _KINDS) or "lora"
        component: dict[str, Any] = {"task": task} if task else {}
        component |= fine_tuning.attention(_ATTENTION[keys.text("flash_attn", _ATTENTION) or "auto"], notes)
        quantization = _quantization(keys, unsupported)
        if kind == "oft":
            unsupported["components"] = "finetuning_type: oft is not modelled; lora, full and freeze are"
        if kind == "lora":
            return {**component, **fine_tuning.lora_component(_lora(keys), quantization)}
        if quantization:
            keys.fail("quantization_bit", f"finetuning_type: {kind} cannot train quantized weights; lora can")
        return component

    def change(
        self, keys: Keys, data: dict[str, Any], notes: list[Note], unsupported: dict[str, str]
    ) -> tuple[dict[str, Any], fine_tuning.Finish | None]:
        kind = keys.text("finetuning_type") or "lora"
        reentrant = keys.flag("use_reentrant_gc") is not False
        scope = (
            {"scope": "none"}
            if keys.flag("disable_gradient_checkpointing")
            else {"scope": "all", "reentrant": reentrant}
        )
        data = {**data, "checkpointing": scope, "precision": _precision(keys, data["precision"], kind)}
        if keys.flag("upcast_layernorm") and data["precision"].get("weights"):
            data = _with(data, {"keep_fp32": ["*norm*"]})
        vision, projector = (
            keys.flag(name) is not False for name in ("freeze_vision_tower", "freeze_multi_modal_projector")
        )
        language = bool(keys.flag("freeze_language_model"))
        frozen = fine_tuning.freeze_parts(language=language, vision=vision, projector=projector)
        keys.ignore("neat_packing", "packing")
        for name in _OTHER_OPTIMIZERS:
            if keys.flag(name):
                unsupported["optimizer"] = f"{name}: this optimizer is not modelled; name another with --optimizer"
        for name, (key, text) in _NOT_MODELLED.items():
            if keys.take(name):
                unsupported[key] = f"{name}: {text}"
        for name in _PARALLEL:
            if (keys.whole(name) or 1) > 1:
                unsupported["gpus"] = f"{name} above 1 is not modelled; leave it out"
        for name, text in _NOTES.items():
            if keys.take(name):
                notes.append(Note("not modelled", f"{name}: {text}", keys.where))
        finish = _layers(keys, bool(data["precision"].get("weights"))) if kind == "freeze" else None
        return data, fine_tuning.chain(frozen, finish, _stage(keys, kind, notes, unsupported))


def _with(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return fine_tuning.change_model({**data, "components": data.get("components", {})}, changes)


def _precision(keys: Keys, precision: dict[str, Any], kind: str) -> dict[str, Any]:
    """The model is loaded in the half precision that is computed in; what learns is in fp32 but for pure_bf16."""
    if keys.flag("pure_bf16"):
        return {"weights": "bf16"}
    half = precision.get("preset")
    return {**precision, "weights": "fp32" if kind == "full" else half} if half else precision


def _lora(keys: Keys) -> dict[str, Any]:
    rank = keys.whole("lora_rank", most=65_536) or _DEFAULT_RANK
    targets, whole = _names(keys, "lora_target") or ["all"], _names(keys, "additional_target")
    keys.ignore("use_rslora")
    return {
        "rank": rank,
        "alpha": keys.number("lora_alpha") or 2 * rank,
        "dropout": keys.number("lora_dropout"),
        "dora": keys.flag("use_dora") or None,
        "targets": "all-linear" if targets == ["all"] else targets,
        "trained_modules": whole,
        "dtype": "bf16" if keys.flag("pure_bf16") else None,
    }


def _names(keys: Keys, name: str) -> list[str] | None:
    said = keys.names(name)
    return None if said is None else [one.strip() for text in said for one in text.split(",") if one.strip()]


def _quantization(keys: Keys, unsupported: dict[str, str]) -> str | None:
    bits, method = keys.whole("quantization_bit", least=2, most=8), keys.text("quantization_method") or "bnb"
    keys.ignore("quantization_type", "double_quantization", "quantization_device_map")
    if bits is None:
        return None
    kind = {4: "nf4", 8: "int8"}.get(bits)
    if kind is None or method not in ("bnb", "bitsandbytes"):
        unsupported["components"] = f"quantization_bit: {bits} by {method} is not modelled; 4 and 8 by bnb are"
    return kind


def _stage(keys: Keys, kind: str, notes: list[Note], unsupported: dict[str, str]) -> fine_tuning.Finish | None:
    stage, loss = keys.text("stage", _STAGES) or "sft", keys.text("pref_loss") or "sigmoid"
    own = keys.text("ref_model")
    keys.ignore("ref_model_adapters", "ref_model_quantization_bit")
    if stage in ("pt", "sft"):
        return None
    if stage not in ("dpo", "kto"):
        what = "a head that no folder describes" if stage == "rm" else "generated text and three models"
        unsupported["step"] = f"stage: {stage} needs {what}, which is not modelled; dpo and kto are"
        return None
    if own is not None:
        notes.append(Note("assumed", f"the reference model ({own}) is as large as the trained one", keys.where))
    reference = "copy" if own is not None or kind != "lora" else "adapter"
    if stage == "kto":
        return fine_tuning.desirability(reference=reference, upcast=True, notes=notes, where=keys.where)
    notes.append(Note("preferences", fine_tuning.PREFERENCE_NOTE, keys.where))
    return fine_tuning.preferences(reference="none" if loss in _WITHOUT_REFERENCE else reference, upcast=True)


def _layers(keys: Keys, half: bool) -> fine_tuning.Finish:
    """freeze: the last layers learn (below zero: the first), in fp32, and the others stay in half precision."""
    number = keys.whole("freeze_trainable_layers", least=-2000, most=2000)
    number = _DEFAULT_FREE_LAYERS if number is None else number
    modules = _names(keys, "freeze_trainable_modules") or ["all"]
    extra = _names(keys, "freeze_extra_modules") or []

    def finish(data: dict[str, Any]) -> dict[str, Any]:
        config = fine_tuning.model_config(data)
        layers = next((config[name] for name in ("num_hidden_layers", "num_layers", "n_layer") if name in config), None)
        if type(layers) is not int:
            raise UsageError(f"{keys.where}: finetuning_type: freeze needs a model whose config.json counts its layers")
        chosen = range(max(0, layers - number), layers) if number > 0 else range(min(-number, layers))
        names = [f"*.{i}.*" if one == "all" else f"*.{i}.{one}*" for i in chosen for one in modules]
        trained = [*names, *(f"*{name}*" for name in extra)]
        return _with(data, {"train_only": trained, **({"keep_fp32": trained} if half else {})})

    return finish
