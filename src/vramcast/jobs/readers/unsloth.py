"""unsloth's YAML (`unsloth train --config`, Studio) and the flags of unsloth-cli.py, with unsloth's defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.jobs.readers import Edits, Part, Reading, Request, combine, fine_tuning, hf_names
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "unsloth config"

_TRAINING = (
    "training_type", "load_in_4bit", "max_seq_length", "train_on_completions", "gradient_checkpointing",
    "gradient_accumulation_steps", "batch_size",
)  # fmt: skip
_LORA = ("finetune_vision_layers", "finetune_mlp_modules", "vision_all_linear", "use_loftq", "lora_r", "target_modules")
_ENOUGH = 4
_TARGETS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
_ATTENTION, _MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
_DEFAULTS = {
    "training_type": "lora", "max_seq_length": 2048, "load_in_4bit": True, "batch_size": 2,
    "gradient_accumulation_steps": 4, "gradient_checkpointing": "unsloth", "optim": "adamw_8bit",
}  # fmt: skip
_LORA_DEFAULTS = {"lora_r": 64, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": _TARGETS}
FLAG_DEFAULTS: dict[str, Any] = {
    "r": 16, "lora_alpha": 16, "lora_dropout": 0.0, "max_seq_length": 2048, "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4, "use_gradient_checkpointing": "unsloth", "optim": "adamw_8bit",
}  # fmt: skip
"""Of unsloth-cli.py."""
_KNOWN = frozenset((
    "data", "logging", "output_dir", "num_epochs", "learning_rate", "warmup_steps", "warmup_ratio", "max_steps",
    "save_steps", "weight_decay", "random_seed", "train_on_completions", "packing", "inference", "eval_steps",
    "lr_scheduler_type", "enable_wandb", "wandb_project", "enable_tensorboard", "tensorboard_dir", "log_frequency",
    "dataset", "random_state", "use_rslora", "bias", "seed", "report_to", "save_model", "save_method", "save_gguf",
    "save_path", "quantization", "quantization_method", "push_model", "push_gguf", "hub_path", "hub_token",
    "logging_steps", "raw_text_file", "chunk_size", "stride", "trust_remote_code", "audio_type", "is_vision",
))  # fmt: skip


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml", ".json")
    training, lora = keys.get("training"), keys.get("lora")
    if not isinstance(training, dict):
        return False
    names = sum(name in training for name in _TRAINING)
    return names + sum(name in lora for name in _LORA if isinstance(lora, dict)) >= _ENOUGH


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    keys = Keys.of(read_document(path), str(path))
    training, lora = keys.section("training"), keys.section("lora")
    training.set_defaults(_DEFAULTS)
    lora.set_defaults(_LORA_DEFAULTS)
    kind = training.text("training_type", ("lora", "full", "qlora", "LoRA", "QLoRA", "Full")) or "lora"
    four = bool(training.flag("load_in_4bit")) and kind.lower() != "full"
    made = _Maker(keys.where)
    names = [one.strip() for text in lora.names("target_modules") or () for one in text.split(",") if one.strip()]
    if lora.flag("finetune_attention_modules") is False:
        names = [name for name in names if name not in _ATTENTION]
    if lora.flag("finetune_mlp_modules") is False:
        names = [name for name in names if name not in _MLP]
    adapters = None
    if kind.lower() != "full":
        adapters = {
            "rank": lora.whole("lora_r", most=65_536), "alpha": lora.number("lora_alpha"),
            "dropout": lora.number("lora_dropout"), "targets": names or None,
        }  # fmt: skip
    for name in ("use_dora", "use_loftq"):
        if lora.flag(name):
            made.unsupported["components"] = f"lora.{name} is not modelled; leave it out"
    model = keys.text("model")
    lora.as_dict(), keys.section("data").as_dict(), keys.section("logging").as_dict()
    data = made.data(
        batch=training.whole("batch_size") or 1, length=training.whole("max_seq_length") or 2048,
        passes=training.whole("gradient_accumulation_steps", most=100_000) or 1, adapters=adapters, four=four,
        checkpointing=training.take("gradient_checkpointing"), optimizer=_optimizer(training),
    )  # fmt: skip
    made.notes += unused_note(keys.unused(_KNOWN), keys.where)
    return made.part(data, fine_tuning.model_named(model, path.parent))


def part_from_flags(keys: Keys, folder: Path, request: Request) -> Part:
    """The command of unsloth-cli.py."""
    keys.set_defaults(FLAG_DEFAULTS)
    made = _Maker(keys.where)
    if keys.flag("use_dora"):
        made.unsupported["components"] = "use_dora is not modelled; leave it out"
    adapters = {
        "rank": keys.whole("r", most=65_536), "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"), "targets": _TARGETS.split(","),
    }  # fmt: skip
    keys.ignore("dtype", "loftq_config", "per_device_eval_batch_size")
    data = made.data(
        batch=keys.whole("per_device_train_batch_size") or 1, length=keys.whole("max_seq_length") or 2048,
        passes=keys.whole("gradient_accumulation_steps", most=100_000) or 1, adapters=adapters,
        four=bool(keys.flag("load_in_4bit")), checkpointing=keys.take("use_gradient_checkpointing"),
        optimizer=_optimizer(keys),
    )  # fmt: skip
    name = keys.text("model_name")
    made.notes += unused_note(keys.unused(_KNOWN), keys.where)
    return made.part(data, fine_tuning.model_named(name, folder))


def _optimizer(keys: Keys) -> str:
    return keys.text("optim", (*hf_names.OPTIMIZERS, *hf_names.OTHER_OPTIMIZERS)) or "adamw_8bit"


class _Maker:
    def __init__(self, where: str) -> None:
        self.where = where
        self.unsupported: dict[str, str] = {}
        text = (
            "its kernels (attention, MLP, norms, cross-entropy) keep less than transformers' own, as which they are "
            "predicted; the loss is predicted in pieces"
        )
        self.notes: list[Note] = [Note("unsloth", text, where)]

    def data(
        self, *, batch: int, length: int, passes: int, adapters: dict[str, Any] | None, four: bool, checkpointing: Any,
        optimizer: str,
    ) -> dict[str, Any]:  # fmt: skip
        wanted = str(checkpointing).lower() not in ("none", "false", "")
        data: dict[str, Any] = {
            **fine_tuning.TRAINER,
            "sizes": {"batch": batch, "sequence": length},
            "accumulation": passes,
            "precision": {"preset": "bf16", "weights": "bf16"},
            "optimizer": fine_tuning.trainer_optimizer(optimizer, "optim", self.unsupported),
            "checkpointing": {"scope": "all", "reentrant": True} if wanted else {"scope": "none"},
            "gradient_clipping": hf_names.DEFAULT_LARGEST_NORM,
        }
        if str(checkpointing) == "unsloth":
            data["offload"] = {"activations": True}
            text = "checkpoints lie in the computer's memory, predicted as torch's save_on_cpu keeps them there"
            self.notes.append(Note("gradient_checkpointing", text, self.where))
        if adapters is not None:
            data["components"] = {"model": fine_tuning.lora_component(adapters, "nf4" if four else None)}
        return data

    def part(self, data: dict[str, Any], model: str | None) -> Part:
        return Part(
            data=data, recognised_as=NAME, where=self.where, notes=tuple(self.notes), unsupported=self.unsupported,
            model=model, finish=fine_tuning.chain(fine_tuning.without_cache, fine_tuning.fused_loss),
            assumed={"precision": "bf16, which unsloth takes on cards that have it (--precision)"},
        )  # fmt: skip


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    match aspect:
        case "batch":
            return {("training", "batch_size"): job.effective_sizes["batch"]}
        case "accumulation":
            return {("training", "gradient_accumulation_steps"): job.accumulation}
        case "sequence" if "sequence" in job.sizes:
            return {("training", "max_seq_length"): job.sizes["sequence"]}
    return {}
