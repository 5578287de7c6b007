"""TRL's trainers (SFT, DPO, KTO, ORPO, CPO, reward models, GRPO), from a YAML for `trl sft --config` or from a command.
TrainingArguments with other defaults (trl/trainer/*_config.py), and for some a second model or generated text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramcast.jobs.readers import (
    Edits,
    Part,
    Reading,
    Request,
    combine,
    fine_tuning,
    hf_arguments,
    hf_edits,
    hf_model,
    hf_names,
)
from vramcast.jobs.readers.documents import peek, read_document
from vramcast.jobs.readers.keys import Keys
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "TRL config"
STEPS = hf_edits.STEPS
nested_files = hf_edits.nested_files

_GRPO = (
    "num_generations", "max_completion_length", "use_vllm", "vllm_mode", "vllm_gpu_memory_utilization", "reward_funcs",
    "steps_per_generation", "num_iterations", "generation_batch_size",
)  # fmt: skip
_DPO = ("precompute_ref_log_probs", "f_divergence_type", "ref_model_mixup_alpha", "discopop_tau", "ld_alpha")
_SFT = ("packing", "padding_free", "assistant_only_loss", "completion_only_loss", "packing_strategy", "eval_packing")
TRAINERS = {
    **{name: name for name in ("sft", "dpo", "kto", "orpo", "cpo", "reward", "grpo")},
    "reward_modeling": "reward",
}
"""Verb or script → trainer."""
_DEFAULT_LENGTH = 1024
_DEFAULTS = {"gradient_checkpointing": True, "dtype": "float32"}
_TOKENS_IN_A_PIECE = 256
"""chunk_size of the loss that SFT computes in pieces."""
_KNOWN = hf_names.WITHOUT_EFFECT | frozenset((
    "beta", "loss_type", "loss_weights", "label_smoothing", "truncation_mode", "pad_token", "disable_dropout",
    "dataset_kwargs", "chat_template_path", "shuffle_dataset", "packing_strategy", "eval_packing", "padding_free",
    "completion_only_loss", "assistant_only_loss", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "epsilon", "epsilon_high", "delta", "scale_rewards", "reward_weights", "log_completions", "num_iterations",
    "num_completions_to_print", "reward_funcs", "generation_kwargs", "importance_sampling_level", "dataset_train_split",
    "dataset_test_split", "pad_to_multiple_of", "f_divergence_type", "dataset_streaming",
    "vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_server_base_url", "vllm_max_model_length",
    "generation_batch_size", "steps_per_generation", "model_init_kwargs", "trust_remote_code", "env",
    "mask_truncated_completions", "chat_template_kwargs", "router_aux_loss_coef", "use_transformers_paged",
    "desirable_weight", "undesirable_weight", "center_rewards_coefficient", "simpo_gamma", "alpha",
))  # fmt: skip


def recognises(path: Path) -> bool:
    return trainer_of(peek(path, ".yaml", ".yml")) is not None


def trainer_of(keys: Any) -> str | None:
    """sft, dpo or grpo, by names that only one of them has."""
    for trainer, names in (("grpo", _GRPO), ("dpo", _DPO), ("sft", _SFT)):
        if any(name in keys for name in names):
            return trainer
    return None


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    keys = Keys.of(read_document(path), str(path))
    return part_from(keys, path.parent, request, trainer_of(set(keys)) or "sft")


def part_from(keys: Keys, folder: Path, request: Request, trainer: str) -> Part:
    length = {} if trainer == "grpo" or keys.first(hf_names.SEQUENCE_NAMES) else {"max_length": _DEFAULT_LENGTH}
    keys.set_defaults({**_defaults(keys), **length})
    return hf_arguments.part_from(keys, folder, request, "causal-lm", _Dialect(trainer))


def _defaults(keys: Keys) -> dict[str, Any]:
    half = {} if keys.take("fp16") or keys.take("bf16") is not None else {"bf16": True}
    own_dtype = {"dtype": None} if keys.first(hf_names.DTYPE_NAMES) else {}
    return {**_DEFAULTS, **half, **own_dtype}


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    keys.set_defaults(_defaults(keys))
    return hf_edits.edits(keys, aspect, job)


class _Dialect(hf_arguments.Dialect):
    known = _KNOWN

    def __init__(self, trainer: str) -> None:
        self._trainer = trainer
        self.name = f"{NAME} ({trainer.upper()})"

    def component(self, keys: Keys, task: str | None, notes: list[Note], unsupported: dict[str, str]) -> dict[str, Any]:
        component = hf_model.component_from(keys, task, notes, unsupported)
        if component.get("mode") == "lora":  # adapters are in the dtype of the weights; on quantized ones in bf16
            dtype = hf_names.DTYPES.get(str(keys.take(keys.first(hf_names.DTYPE_NAMES) or "dtype")), "fp32")
            lora = {"dropout": 0.05, "alpha": 32, **component["lora"]}
            component["lora"] = {**lora, "dtype": "bf16" if "quantization" in component else dtype}
        return component

    def change(
        self, keys: Keys, data: dict[str, Any], notes: list[Note], unsupported: dict[str, str]
    ) -> tuple[dict[str, Any], fine_tuning.Finish | None]:
        if keys.flag("activation_offloading"):
            text = "activations in the computer's memory are predicted as torch's save_on_cpu keeps them there"
            notes.append(Note("activation_offloading", text, keys.where))
            data = {**data, "offload": {"activations": True}}
            if data["checkpointing"]["scope"] == "all":  # what the reentrant kind saves can be moved
                data["checkpointing"] = {"scope": "all", "reentrant": True}
        has_adapter = data.get("components", {}).get("model", {}).get("mode") == "lora"
        if self._trainer == "sft":
            return data, self._sft(keys, notes)
        if self._trainer in ("dpo", "kto"):
            return data, self._compared(keys, has_adapter, notes)
        if self._trainer in ("orpo", "cpo", "reward"):
            notes.append(Note("preferences", fine_tuning.PREFERENCE_NOTE, keys.where))
            return data, fine_tuning.rewards if self._trainer == "reward" else self._without_reference(keys)
        return self._grpo(keys, data, has_adapter, notes)

    def _sft(self, keys: Keys, notes: list[Note]) -> fine_tuning.Finish | None:
        if keys.flag("packing"):
            notes.append(Note("packing", "samples are packed: batches are full", keys.where))
        if keys.text("loss_type", ("nll", "dft", "chunked_nll")) not in (None, "chunked_nll") or keys.flag(
            "use_liger_kernel"
        ):
            return None
        text = "head and cross-entropy in pieces of 256 tokens, TRL's default; before TRL 1 it was the usual loss"
        notes.append(Note("chunked loss", f"{text} (loss_type: nll)", keys.where))
        return _in_pieces

    def _compared(self, keys: Keys, has_adapter: bool, notes: list[Note]) -> fine_tuning.Finish:
        """With a reference."""
        known, synced = keys.flag("precompute_ref_log_probs"), keys.flag("sync_ref_model")
        reference = "none" if known else "adapter" if has_adapter and not synced else "copy"
        if self._trainer == "kto":
            return fine_tuning.desirability(reference=reference, upcast=False, notes=notes, where=keys.where)
        notes.append(Note("preferences", fine_tuning.PREFERENCE_NOTE, keys.where))
        return fine_tuning.preferences(reference=reference, likelihood=keys.number("rpo_alpha") is not None)

    def _without_reference(self, keys: Keys) -> fine_tuning.Finish:
        """ORPO, and CPO and SimPO with its alpha of 0."""
        share = keys.number("cpo_alpha")
        likelihood = self._trainer == "orpo" or (share != 0 and keys.text("loss_type") != "alphapo")
        return fine_tuning.preferences(reference="none", likelihood=likelihood)

    def _grpo(
        self, keys: Keys, data: dict[str, Any], has_adapter: bool, notes: list[Note]
    ) -> tuple[dict[str, Any], fine_tuning.Finish]:
        share = keys.number("vllm_gpu_memory_utilization")
        settings = fine_tuning.Grpo(
            completion=keys.whole("max_completion_length") or fine_tuning.DEFAULT_COMPLETION,
            prompt=keys.whole("max_prompt_length"),
            beta=keys.number("beta") or 0.0,
            has_adapter=has_adapter,
            vllm=bool(keys.flag("use_vllm")),
            colocated=keys.text("vllm_mode", ("server", "colocate")) != "server",
            share=0.3 if share is None else share,
            sleeps=bool(keys.flag("vllm_enable_sleep_mode")),
        )
        keys.ignore("num_generations", "vllm_tensor_parallel_size")
        more, finish = fine_tuning.grpo(settings, data["sizes"], notes, keys.where)
        return {**data, **more}, finish


def _in_pieces(data: dict[str, Any]) -> dict[str, Any]:
    """Models whose logits are changed after the head compute them as a whole here."""
    config = fine_tuning.model_config(data)
    changed = any(config.get(name) not in (None, 1, 1.0) for name in ("final_logit_softcapping", "logit_scale"))
    return data if changed else {**data, "loss": [{"kind": "model", "chunk_tokens": _TOKENS_IN_A_PIECE}]}
