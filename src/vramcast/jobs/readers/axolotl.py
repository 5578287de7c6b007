"""axolotl YAML: a model, adapters and a dataset for Hugging Face's Trainer, with names of its own (axolotl 0.5 on)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vramcast.jobs.readers import (
    Edits,
    Part,
    Reading,
    Request,
    axolotl_names,
    combine,
    deepspeed,
    fine_tuning,
    hf_names,
)
from vramcast.jobs.readers.documents import beside, peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "axolotl config"
STEPS = "max_steps"

_BASE = ("base_model", "base_model_config")
_CERTAIN = (
    "micro_batch_size", "sequence_len", "datasets", "adapter", "sample_packing", "pretraining_dataset", "num_epochs",
    "lora_target_linear", "special_tokens", "val_set_size",
)  # fmt: skip
_DEFAULT_LENGTH, _DEFAULT_BATCH = 512, 1
_DEFAULT_OPTIMIZER = "adamw_torch_fused"
_ATTENTION_FLAGS = {
    "xformers_attention": "xformers", "sage_attention": "sage", "flex_attention": "flex_attention",
    "flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager",
}  # fmt: skip
_EMBEDDINGS = ("embed_tokens", "lm_head")
_FP32_WITHOUT_FLASH = ["*norm*", *(f"*{name}*" for name in _EMBEDDINGS)]
"""What it trains in fp32 where the whole model learns and attention is torch's own (_configure_embedding_dtypes)."""
_PREFERENCES, _WITHOUT_REFERENCE = ("dpo", "ipo"), ("orpo", "simpo")
_PARALLEL = ("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "expert_parallel_size")
_PLAIN_PATTERN = re.compile(r"\^?((?:[\w.\\]|\[[0-9-]+\]\+?)+?)(?:\.?\*)?(\$?)")
_DIGITS = re.compile(r"(\[[0-9-]+\])\+")


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml")
    return _BASE[0] in keys and any(name in keys for name in _CERTAIN)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    keys = Keys.of(read_document(path), str(path), absent=("",))
    return _Reader(keys, path.parent, request).part()


class _Reader:
    def __init__(self, keys: Keys, folder: Path, request: Request) -> None:
        self._keys, self._folder, self._request = keys, folder, request
        self._notes: list[Note] = []
        self._assumed: dict[str, str] = {}
        self._unsupported: dict[str, str] = {}
        self._adapter = keys.text("adapter")
        self._steps: list[fine_tuning.Finish] = [fine_tuning.without_cache]

    def part(self) -> Part:
        keys = self._keys
        batch, passes = self._batch()
        data: dict[str, Any] = {
            **fine_tuning.TRAINER,
            "sizes": {"batch": batch, "sequence": self._length()},
            "accumulation": passes,
            "precision": self._precision(),
            "optimizer": self._optimizer(),
            "gpus": self._gpus(),
        }
        data |= self._checkpointing() | self._evaluation(batch)
        norm = keys.number("max_grad_norm")
        norm = hf_names.DEFAULT_LARGEST_NORM if norm is None else norm
        data |= {"gradient_clipping": norm} if norm else {}
        if keys.take("torch_compile") not in (None, False, "auto"):
            data["torch_compile"] = True
        data["components"] = {"model": self._model(data["precision"])}
        data |= self._second_model(data)
        self._fused_losses()
        self._not_modelled()
        nested = self._deepspeed()
        self._notes += unused_note(keys.unused(axolotl_names.WITHOUT_EFFECT), keys.where)
        if nested is not None:
            data = combine.merge(data, nested.data)
            self._notes += nested.notes
            self._assumed |= nested.assumed
            self._unsupported |= nested.unsupported
        return Part(
            data=data, recognised_as=NAME, where=keys.where, notes=tuple(self._notes), assumed=self._assumed,
            unsupported=self._unsupported, model=self._base_model(), finish=fine_tuning.chain(*self._steps),
        )  # fmt: skip

    # -- the model -------------------------------------------------------------------------------------------

    def _base_model(self) -> str | None:
        self._keys.ignore(*_BASE)
        return fine_tuning.model_named(self._keys.text("base_model"), self._folder)

    def _model(self, precision: dict[str, Any]) -> dict[str, Any]:
        keys = self._keys
        component = fine_tuning.attention(self._attention(), self._notes)
        class_name = keys.text("model_type") or keys.text("type_of_model")
        if class_name and not class_name.startswith("Auto") and not keys.flag("trust_remote_code"):
            component["class_name"] = class_name
        config = keys.take("overrides_of_model_config") or keys.take("model_config")
        if isinstance(config, dict):
            component["config"] = {str(name): value for name, value in config.items()}
        component |= self._stored_whole(component.get("config", {}))
        if keys.flag("freeze_mm_modules"):
            self._steps.append(fine_tuning.freeze_parts(language=False, vision=True, projector=True))
        if keys.flag("trust_remote_code"):
            self._notes.append(Note("code", "trust_remote_code is heeded with --trust-remote-code only", keys.where))
        quantization = self._quantization()
        if self._adapter is not None:
            if keys.flag("quantize_moe_experts"):
                component["quantize_experts"] = True
                if quantization != "nf4":
                    self._unsupported["components"] = (
                        "quantize_moe_experts: only experts in 4 bits are modelled (adapter: qlora, load_in_4bit)"
                    )
            return {**component, **fine_tuning.lora_component(self._lora(precision), quantization)}
        if keys.flag("load_in_4bit") or keys.flag("load_in_8bit"):
            keys.fail("adapter", "load_in_8bit and load_in_4bit need one: lora or qlora")
        patterns = self._unfrozen()
        if patterns:
            component["train_only"] = patterns
        if not self._flash() and precision.get("weights") in ("bf16", "fp16") and not self._shards():
            component["keep_fp32"] = _FP32_WITHOUT_FLASH
        return component

    def _stored_whole(self, config: dict[str, Any]) -> dict[str, Any]:
        """Weights that the folder holds in few bits and that are brought into the dtype of the others."""
        keys = self._keys
        kind, said = keys.text("model_quantization_config"), keys.section("model_quantization_config_kwargs")
        dequantized = said.flag("dequantize")
        said.as_dict()
        if kind and not dequantized:
            self._unsupported["components"] = (
                f"model_quantization_config: {kind} is not modelled; with dequantize: true below "
                "model_quantization_config_kwargs whole weights are"
            )
        return {"config": {**config, "quantization_config": None}} if kind else {}

    def _quantization(self) -> str | None:
        keys = self._keys
        four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
        if self._adapter == "qlora" and not four:
            keys.fail("load_in_4bit", "adapter: qlora needs it to be true")
        if four and eight:
            keys.fail("load_in_8bit", "load_in_4bit is true as well: leave one out")
        if keys.take("gptq"):
            self._unsupported["components"] = "gptq: weights quantized by GPTQ are not modelled; leave it out"
        keys.ignore("bnb_config_kwargs")
        # It uses each bitsandbytes config only with the adapter that it is meant for.
        return "nf4" if four and self._adapter == "qlora" else "int8" if eight and self._adapter == "lora" else None

    def _lora(self, precision: dict[str, Any]) -> dict[str, Any]:
        keys = self._keys
        if self._adapter not in ("lora", "qlora"):
            keys.fail("adapter", f"{self._adapter!r} is not modelled; lora and qlora are")
        for name, text in axolotl_names.LORA_NOT_MODELLED.items():
            if keys.take(name):
                self._unsupported["components"] = f"{name}: {text}"
        targets = keys.take("lora_target_modules")
        names = targets if isinstance(targets, str) else keys.names("lora_target_modules")
        if keys.flag("lora_target_linear"):
            names = "all-linear"
        keeps_dtype = keys.flag("peft_autocast_adapter_dtype") is False
        for name in ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"):
            if keys.flag(name):
                text = f"{name} is not modelled: it keeps less than is predicted"
                self._notes.append(Note("not modelled", text, keys.where))
        return {
            "rank": keys.whole("lora_r", most=65_536) or keys.need("lora_r", "16"),
            "alpha": keys.number("lora_alpha"),
            "dropout": keys.number("lora_dropout"),
            "targets": names or None,
            "parameters": self._adapted_parameters(),
            "trained_modules": keys.names("lora_modules_to_save"),
            "dora": keys.flag("peft_use_dora") or None,
            "dtype": precision.get("weights") if keeps_dtype else None,
        }

    def _adapted_parameters(self) -> list[str] | None:
        keys = self._keys
        names = keys.names("lora_target_parameters")
        kernel = next((name for name in ("use_scattermoe", "use_sonicmoe") if keys.flag(name)), None)
        if names and kernel is not None:
            self._unsupported["components"] = (
                f"lora_target_parameters with {kernel}: its kernel for adapters on experts is not modelled; leave "
                f"{kernel} out to predict with peft's own"
            )
        return names

    def _unfrozen(self) -> list[str]:
        """Regular expressions at the beginning of a name, in which a dot is a dot. `[0-9]+` is a number of one digit or
        two."""
        found = []
        for pattern in self._keys.names("unfrozen_parameters") or ():
            plain = _PLAIN_PATTERN.fullmatch(pattern)
            if plain is None:
                self._unsupported["components.model.train_only"] = (
                    f"unfrozen_parameters: the pattern {pattern[:60]!r} is not followed; say it with --set "
                    "'components.model.train_only=[\"model.layers.3?.*\"]'"
                )
                return []
            name = plain[1].replace("\\", "") + ("" if plain[2] else "*")
            found += [_DIGITS.sub(times, name) for times in ((r"\1", r"\1\1") if _DIGITS.search(name) else ("",))]
        return found

    def _attention(self) -> str | None:
        keys = self._keys
        flags = [name for flag, name in _ATTENTION_FLAGS.items() if keys.flag(flag)]
        said = keys.text("attn_implementation")
        return said or (flags[0] if flags else None)

    def _flash(self) -> bool:
        """Whether it brings all weights into one dtype, which kernels other than torch's own need."""
        fused = self._keys.flag("cut_cross_entropy")
        return self._attention() not in (None, "eager", "sdpa") or bool(fused)

    # -- the training ----------------------------------------------------------------------------------------

    def _batch(self) -> tuple[int, int]:
        keys = self._keys
        batch = keys.whole("micro_batch_size")
        if batch is None:
            batch = _DEFAULT_BATCH
            self._assumed["sizes.batch"] = f"micro_batch_size {batch}, axolotl's default (--batch)"
        passes, total = keys.whole("gradient_accumulation_steps", most=100_000), keys.whole("batch_size")
        if passes is None and total is not None:
            passes = max(1, total // batch)
        return batch, passes or 1

    def _length(self) -> int:
        keys = self._keys
        length = keys.whole("sequence_len")
        if length is None:
            length = _DEFAULT_LENGTH
            self._assumed["sizes.sequence"] = f"sequence_len {length}, axolotl's default (--seq)"
        packed, padded = keys.flag("sample_packing"), keys.flag("pad_to_sequence_len")
        if packed:
            text = "samples are packed: batches of micro_batch_size × sequence_len tokens"
            self._notes.append(Note("packing", text, keys.where))
        elif not padded:
            self._notes.append(
                Note("padding", "batches are predicted at sequence_len; shorter ones take less", keys.where)
            )
        return length

    def _precision(self) -> dict[str, Any]:
        keys = self._keys
        bf16, fp16 = keys.take("bf16"), keys.flag("fp16")
        if bf16 not in (None, True, False, "auto", "full"):
            keys.flag("bf16")
        if bf16 in (None, "auto"):
            bf16 = not fp16
            if bf16:
                self._assumed["precision"] = "bf16, which `bf16: auto` means on cards that have it (--precision)"
        if keys.take("fp8"):
            self._unsupported["precision"] = "fp8 is not modelled; --precision bf16 predicts with that instead"
        tf32 = keys.take("tf32")
        precision: dict[str, Any] = {"tf32": True} if tf32 is True else {}
        if bf16:
            precision |= {"preset": "bf16", "weights": "bf16"}
        elif keys.flag("bfloat16"):
            precision |= {"weights": "bf16"}
        elif fp16:
            precision |= {"preset": "fp16", "weights": "fp16"}
        elif keys.flag("float16") or keys.flag("load_in_8bit"):
            precision |= {"weights": "fp16"}
        keys.ignore("bfloat16", "float16", "float32")
        if precision.get("weights") == "fp16" and self._adapter is None:
            precision["grad_scaler"] = False  # a GradScaler refuses weights that are fp16
        return precision

    def _optimizer(self) -> dict[str, Any]:
        keys = self._keys
        name = keys.text("optimizer", (*hf_names.OPTIMIZERS, *hf_names.OTHER_OPTIMIZERS, *axolotl_names.OPTIMIZERS))
        if name is None:
            name = _DEFAULT_OPTIMIZER
            self._assumed["optimizer"] = f"{name}, axolotl's default (--optimizer)"
        return fine_tuning.trainer_optimizer(name, "optimizer", self._unsupported)

    def _checkpointing(self) -> dict[str, Any]:
        keys = self._keys
        wanted, offload = keys.take("gradient_checkpointing"), keys.take("activation_offloading")
        if wanted in ("offload", "offload_disk"):
            wanted, offload = True, offload or "legacy"
        if wanted is not None and type(wanted) is not bool:
            keys.flag("gradient_checkpointing")
        reentrant = bool(keys.section("gradient_checkpointing_kwargs").flag("use_reentrant"))
        data: dict[str, Any] = {
            "checkpointing": {"scope": "all", "reentrant": reentrant} if wanted else {"scope": "none"}
        }
        if offload:
            text = "activations in the computer's memory are predicted as torch's save_on_cpu keeps them there"
            self._notes.append(Note("activation_offloading", text, keys.where))
            data["offload"] = {"activations": True}
            if wanted:  # what the reentrant kind saves can be moved; the other keeps it on the card
                data["checkpointing"] = {"scope": "all", "reentrant": True}
            if offload is True and self._adapter is not None:
                data["checkpointing"] = {"scope": "none"}  # it replaces what is computed again
        for name in ("layer_offloading", "selective_checkpointing", "dynamic_checkpoint"):
            if keys.take(name):
                self._unsupported["checkpointing"] = (
                    f"{name} is not modelled; --checkpointing all or none predicts with that instead"
                )
        return data

    def _evaluation(self, batch: int) -> dict[str, Any]:
        keys = self._keys
        own = keys.whole("eval_batch_size") or batch
        share, sets = keys.number("val_set_size"), keys.take("test_datasets")
        asked = [keys.take(name) for name in ("evals_per_epoch", "eval_steps", "eval_strategy", "evaluation_strategy")]
        length = keys.whole("eval_sequence_len")
        if not (share or sets) or all(one in (None, "no", False, 0) for one in asked):
            return {}
        return fine_tuning.evaluation(own, **({"sequence": length} if length else {}))

    def _shards(self) -> bool:
        return bool(self._keys.take("fsdp") or self._keys.take("fsdp_config"))

    def _gpus(self) -> dict[str, Any]:
        keys = self._keys
        gpus: dict[str, Any] = {}
        for name in _PARALLEL:
            if (keys.whole(name) or 1) > 1:
                self._unsupported["gpus"] = f"{name} above 1 is not modelled; --set gpus.count=1 predicts without it"
        if keys.flag("use_ray") and (workers := keys.whole("ray_num_workers")):
            gpus["count"] = workers
        shards, copies = keys.whole("dp_shard_size") or 1, keys.whole("dp_replicate_size") or 1
        if shards * copies > 1:
            gpus["count"] = shards * copies
        unused, bucket = keys.flag("ddp_find_unused_parameters"), keys.number("ddp_bucket_cap_mb")
        gpus |= {"find_unused_parameters": unused} if unused is not None else {}
        gpus |= {"bucket_cap_mb": bucket} if bucket else {}
        if self._shards():
            gpus |= self._fsdp()
        return gpus

    def _fsdp(self) -> dict[str, Any]:
        """Its keys have the prefix fsdp_ or not."""
        words = self._keys.names("fsdp") or []
        section = self._keys.section("fsdp_config")
        said = {name.removeprefix("fsdp_"): value for name, value in section.as_dict().items()}
        gpus: dict[str, Any] = {"strategy": "fsdp"}
        kept = said.get("reshard_after_forward") in (False, "SHARD_GRAD_OP") or "shard_grad_op" in words
        gpus["reshard_after_forward"] = not kept
        if said.get("offload_params") is True or "offload" in words:
            gpus["offload_parameters"] = True
        wrap = said.get("transformer_layer_cls_to_wrap")
        if isinstance(wrap, str | list):
            names = wrap if isinstance(wrap, list) else wrap.split(",")
            gpus["wrap"] = [str(name).strip() for name in names]
        return gpus

    # -- what else is on the card ----------------------------------------------------------------------------

    def _second_model(self, data: dict[str, Any]) -> dict[str, Any]:
        keys = self._keys
        kind = keys.text("rl", axolotl_names.RL)
        if kind is None:
            if keys.flag("reward_model"):
                self._steps.append(fine_tuning.rewards)
                self._notes.append(Note("rewards", fine_tuning.PREFERENCE_NOTE, keys.where))
            if keys.flag("process_reward_model"):
                self._unsupported["step"] = "process_reward_model: a reward for each step of a text is not modelled"
            return {}
        copy = self._adapter is None or keys.flag("rl_adapter_ref_model")
        reference = "none" if keys.flag("precompute_ref_log_probs") else "copy" if copy else "adapter"
        if kind in (*_PREFERENCES, *_WITHOUT_REFERENCE):
            compared = reference if kind in _PREFERENCES else "none"
            self._steps.append(fine_tuning.preferences(reference=compared, likelihood=kind == "orpo"))
            self._notes.append(Note("rl", fine_tuning.PREFERENCE_NOTE, keys.where))
            return {}
        if kind == "kto":
            step = fine_tuning.desirability(reference=reference, upcast=False, notes=self._notes, where=keys.where)
            self._steps.append(step)
            return {}
        if kind in ("grpo", "gdpo"):  # they differ in how advantages are normalised
            return self._grpo(data)
        self._unsupported["step"] = f"rl: {kind} is not modelled; dpo, ipo, orpo, simpo, kto, grpo and gdpo are"
        return {}

    def _grpo(self, data: dict[str, Any]) -> dict[str, Any]:
        keys = self._keys
        trl, vllm = keys.section("trl"), keys.section("vllm")
        settings = fine_tuning.Grpo(
            completion=trl.whole("max_completion_length") or fine_tuning.DEFAULT_COMPLETION,
            beta=trl.number("beta") or keys.number("rl_beta") or 0.0,
            has_adapter=self._adapter is not None,
            vllm=bool(trl.flag("use_vllm")),
            colocated=trl.text("vllm_mode", ("server", "colocate")) == "colocate",
            share=vllm.number("gpu_memory_utilization") or 0.9,
            sleeps=bool(trl.flag("vllm_enable_sleep_mode")),
        )
        trl.as_dict(), vllm.as_dict()
        more, step = fine_tuning.grpo(settings, data["sizes"], self._notes, keys.where)
        self._steps.append(step)
        return more

    def _fused_losses(self) -> None:
        keys = self._keys
        plugins = keys.names("plugins") or []
        cut = keys.flag("cut_cross_entropy")
        if cut is None and any("CutCrossEntropyPlugin" in name for name in plugins):
            cut = True
        what = "cut_cross_entropy" if cut else None
        for name in ("liger_fused_linear_cross_entropy", "chunked_cross_entropy"):
            what = name if keys.flag(name) else what
        keys.ignore("chunked_cross_entropy_num_chunks")
        if what and keys.take("rl") is None:
            self._steps.append(fine_tuning.fused_loss)
            self._notes.append(fine_tuning.fused_loss_note(what, keys.where))
        for name in plugins:
            kind = name.rpartition(".")[2]
            if kind in axolotl_names.PLUGINS_NOT_MODELLED:
                text = axolotl_names.PLUGINS_NOT_MODELLED[kind]
                self._unsupported["step"] = f"plugins: {kind} {text}"
            elif kind not in axolotl_names.PLUGINS:
                text = f"{kind} is not known here: what it changes is no part of the prediction"
                self._notes.append(Note("plugins", text, keys.where))

    def _not_modelled(self) -> None:
        keys = self._keys
        for name, text in axolotl_names.NOTES.items():
            if keys.take(name):
                self._notes.append(Note("not modelled", f"{name}: {text}", keys.where))
        for name, (key, text) in axolotl_names.NOT_MODELLED.items():
            if keys.take(name):
                self._unsupported[key] = f"{name}: {text}"

    def _deepspeed(self) -> Part | None:
        keys = self._keys
        config = keys.take("deepspeed")
        if isinstance(config, dict):
            return deepspeed.part_from(Keys(config, f"{keys.where}: deepspeed", absent=deepspeed.ABSENT))
        file = keys.text("deepspeed")
        return deepspeed.read_part(beside(file, self._folder), self._request) if file else None


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    match aspect:
        case "batch":
            return {("micro_batch_size",): job.effective_sizes["batch"]}
        case "accumulation":
            return {("gradient_accumulation_steps",): job.accumulation}
        case "sequence" if "sequence" in job.sizes:
            return {("sequence_len",): job.sizes["sequence"]}
        case "optimizer" if len(job.optimizer) == 1:
            name = hf_names.optimizer_name(job.optimizer[0])
            return {("optimizer",): name} if name else {}
        case "checkpointing" if job.checkpointing.scope != "modules":
            return {("gradient_checkpointing",): job.checkpointing.scope == "all"}
        case "evaluation" if job.evaluation is None:
            return {("val_set_size",): 0}
    return {}
