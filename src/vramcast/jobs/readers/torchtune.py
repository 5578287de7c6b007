"""torchtune recipes' YAML: its models are predicted as transformers' networks of the same sizes. The components that it
names are never imported."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from vramcast.jobs.folders import CONFIG
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.readers import Edits, Part, Reading, Request, combine, fine_tuning, torchtune_models
from vramcast.jobs.readers.documents import beside, peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.readers.torchtitan import BASE
from vramcast.jobs.references import nearest
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "torchtune config"
STEPS = "max_steps_per_epoch"

_COMPONENT = "_component_"
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEEPEST = 8
_MODULE = "torchtune."
_DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32", "float32": "fp32"}
_TARGETS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_DEFAULT_RANK, _DEFAULT_ALPHA, _DEFAULT_CHUNKS = 8, 16, 8
_OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "pagedadamw", "pagedadamw8bit", "adamw8bit", "adam8bit")
_CHUNKED = ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss")
_RECIPES_NOT_MODELLED = {
    "teacher_model": "distillation from a second model is not modelled here; a vramcast.yaml can say it",
    "reward_and_value_model": "PPO is not modelled",
    "policy_model": "PPO is not modelled",
    "grpo_samples": "torchtune's GRPO is not modelled",
    "orchestration": "asynchronous GRPO is not modelled",
}
_DEGREES = ("tensor_parallel_dim", "context_parallel_dim")
_KNOWN = frozenset((
    "output_dir", "tokenizer", "checkpointer", "resume_from_checkpoint", "save_adapter_weights_only", "seed", "shuffle",
    "lr_scheduler", "epochs", "max_steps_per_epoch", "metric_logger", "log_every_n_steps", "log_peak_memory_stats",
    "datasets", "dataloader", "reward_checkpointer", "value_checkpointer", "ref_policy_checkpointer", "tune",
    "teacher_checkpointer", "kd_loss", "kd_ratio", "quantizer", "log_level",
    "device", "profiler", "dataset", "dataset_val", "low_cpu_ram", "collate_fn", "ref_checkpointer",
    "run_val_every_n_steps", "custom_sharded_layers", "save_every_n_epochs", "enable_async_checkpointing",
))  # fmt: skip


def recognises(path: Path) -> bool:
    keys = peek(path, ".yaml", ".yml")
    sections = [keys.get(name) for name in ("model", "tokenizer", "checkpointer", "optimizer", "loss", "policy_model")]
    named = [one.get(_COMPONENT) for one in sections if isinstance(one, dict)]
    return any(isinstance(one, str) and one.startswith(_MODULE) for one in named)


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    document = read_document(path)
    keys = Keys(_resolved(document.data, document.data), str(path), document.line_of)
    return _Reader(keys, path, request).part()


def _resolved(value: Any, root: Any, depth: int = 0) -> Any:
    """Values that refer to another as a whole (`${batch_size}`) replaced by it, as OmegaConf does."""
    if isinstance(value, dict):
        return {key: _resolved(one, root, depth) for key, one in value.items()}
    named = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if named is None or depth > _DEEPEST:
        return value
    found = root
    for name in named[1].split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(found, dict | list) else _resolved(found, root, depth + 1)


class _Reader:
    def __init__(self, keys: Keys, path: Path, request: Request) -> None:
        self._keys, self._path, self._request = keys, path, request
        self._notes: list[Note] = []
        self._assumed: dict[str, str] = {}
        self._unsupported: dict[str, str] = {}
        self._steps: list[fine_tuning.Finish] = [fine_tuning.without_cache]

    def part(self) -> Part:
        keys = self._keys
        for name, text in _RECIPES_NOT_MODELLED.items():
            if keys.take(name) is not None:
                self._unsupported["step"] = f"{name}: {text}"
        if "optimizer" not in keys and not self._unsupported:
            self._keys.need("optimizer", "{_component_: torch.optim.AdamW}; without one it is no training")
        data: dict[str, Any] = {
            "name": self._path.stem,
            "outputs_live_until": "forward",
            "sizes": self._sizes(),
            "precision": self._precision(),
            "optimizer": self._optimizer(),
            "accumulation": keys.whole("gradient_accumulation_steps", most=100_000) or 1,
            "gpus": self._gpus(),
        }
        data |= self._activations()
        norm = keys.number("clip_grad_norm")
        data |= {"gradient_clipping": norm} if norm else {}
        if keys.take("compile") is True:
            data["torch_compile"] = True
        folder, component = self._model(data["precision"])
        if component:
            data["components"] = {"model": component}
        data |= self._loss(component) | self._evaluation()
        quantizer = keys.take("quantizer")
        if isinstance(quantizer, dict) and "QAT" in str(quantizer.get(_COMPONENT)).upper():
            self._unsupported["precision"] = "quantizer: training for quantized weights is not modelled; leave it out"
        for name in ("profiler", "metric_logger", "lr_scheduler", "checkpointer", "ref_checkpointer"):
            keys.ignore(name)
        self._notes += unused_note(keys.unused(_KNOWN), keys.where)
        return Part(
            data=data, recognised_as=NAME, where=keys.where, notes=tuple(self._notes), assumed=self._assumed,
            unsupported=self._unsupported, model=folder, finish=fine_tuning.chain(*self._steps),
        )  # fmt: skip

    def _model(self, precision: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
        """The checkpoint's folder, where it is on this machine; or else a network of the same sizes."""
        keys = self._keys.section("model")
        named = keys.text(_COMPONENT)
        if named is None:
            if self._request.model is None and not self._unsupported:
                keys.need(_COMPONENT, "torchtune.models.llama3_1.lora_llama3_1_8b, or name a folder with --model")
            named = ""
        builder = named.rpartition(".")[2]
        component = self._adapters(keys, builder, precision)
        for name in ("decoder_trainable", "encoder_trainable", "fusion_trainable"):
            if keys.take(name) not in (None, True):
                self._unsupported["components"] = f"model.{name}: parts of a model that stay frozen are not modelled"
        keys.as_dict()
        folder = self._keys.section("checkpointer").text("checkpoint_dir")
        self._keys.section("checkpointer").as_dict()
        if self._request.model is not None:
            return None, component
        path = None if folder is None else beside(folder, self._path.parent)
        if path is not None and os.path.isfile(path / CONFIG):
            return str(path), component
        config = torchtune_models.config_of(torchtune_models.plain_name(builder))
        if config is None and not self._unsupported:
            guess = nearest(torchtune_models.plain_name(builder), torchtune_models.NAMES)
            self._keys.section("model").fail(
                _COMPONENT,
                f"the sizes of {builder!r} are not known{guess if guess.startswith(';') else ''}; name its folder with "
                "--model FOLDER, or put config.json into checkpointer.checkpoint_dir",
            )
        class_name = (config or {}).get("architectures", ["model"])[0]
        text = f"{builder} is predicted as transformers' {class_name} of the same sizes"
        self._notes.append(Note("model", text))
        return None, {"transformers": str(BASE), "config": config or {}, **component}

    def _adapters(self, keys: Keys, builder: str, precision: dict[str, Any]) -> dict[str, Any]:
        if not builder.startswith(("lora_", "qlora_")):
            return {}
        targets = [_TARGETS.get(name, name) for name in keys.names("lora_attn_modules") or ()]
        targets += _MLP if keys.flag("apply_lora_to_mlp") else ()
        targets += ["lm_head"] if keys.flag("apply_lora_to_output") else ()
        if not targets:
            keys.need("lora_attn_modules", "['q_proj', 'v_proj', 'output_proj']")
        quantized = builder.startswith("qlora_") or keys.flag("quantize_base")
        lora = {
            "rank": keys.whole("lora_rank", most=65_536) or _DEFAULT_RANK,
            "alpha": keys.number("lora_alpha") or _DEFAULT_ALPHA,
            "dropout": keys.number("lora_dropout"),
            "targets": targets,
            "dora": keys.flag("use_dora") or None,
            "dtype": precision.get("weights"),
        }
        if quantized:
            self._notes.append(Note("quantization", "torchao's NF4 weights are predicted as bitsandbytes' nf4"))
        return fine_tuning.lora_component(lora, "nf4" if quantized else None)

    def _sizes(self) -> dict[str, int]:
        keys, tokenizer = self._keys, self._keys.section("tokenizer")
        batch = keys.whole("batch_size")
        if batch is None:
            batch = 1
            self._assumed["sizes.batch"] = "batch_size 1: the config says none (--batch)"
        length = tokenizer.whole("max_seq_len")
        tokenizer.as_dict()
        dataset = keys.take("dataset")
        if isinstance(dataset, dict) and dataset.get("packed") is True:
            self._notes.append(Note("packing", "samples are packed to tokenizer.max_seq_len", keys.where))
        keys.ignore("dataset", "dataset_val")
        if length is None:
            text = "texts as long as they come, for tokenizer.max_seq_len is left out: say the longest with --seq"
            self._assumed["sizes.sequence"] = text
            return {"batch": batch}
        return {"batch": batch, "sequence": length}

    def _precision(self) -> dict[str, Any]:
        """Weights, gradients and optimizer state are all in `dtype`; there is no autocast."""
        said = self._keys.text("dtype", _DTYPES) or "fp32"
        dtype = _DTYPES[said]
        if dtype == "fp16":
            self._keys.fail("dtype", "torchtune does not train in fp16; bf16 and fp32 are possible")
        return {"weights": dtype}

    def _optimizer(self) -> dict[str, Any]:
        keys = self._keys.section("optimizer")
        name = (
            keys.text(_COMPONENT)
            or ("AdamW" if self._unsupported else "")
            or keys.need(_COMPONENT, "torch.optim.AdamW")
        )
        kind = plain(name.rpartition(".")[2])
        said = keys.as_dict()
        early = {"in_backward": True} if self._keys.flag("optimizer_in_bwd") else {}
        if kind not in _OPTIMIZERS:
            self._unsupported["optimizer"] = f"optimizer: {name} is not modelled; name another with --optimizer"
            return {"name": "adamw"}
        fused = {"fused": True} if said.get("fused") is True else {}
        of_library = kind if not kind.startswith("paged") else f"paged-{kind.removeprefix('paged')}"
        return {"name": of_library, **({"arguments": fused} if fused else {}), **early}

    def _activations(self) -> dict[str, Any]:
        keys = self._keys
        wanted = keys.flag("enable_activation_checkpointing")
        data: dict[str, Any] = {"checkpointing": {"scope": "all" if wanted else "none"}}
        mode = keys.text("ac_mode", ("full", "selective"))
        keys.ignore("ac_option")
        if mode == "selective":
            self._unsupported["checkpointing"] = (
                "ac_mode: selective is not modelled; what it takes lies between --checkpointing all and none"
            )
        if keys.flag("enable_activation_offloading"):
            data["offload"] = {"activations": True}
            if wanted:  # what the reentrant kind saves can be moved; the other keeps it on the card
                data["checkpointing"] = {"scope": "all", "reentrant": True}
            text = "activations in the computer's memory are predicted as torch's save_on_cpu keeps them there"
            self._notes.append(Note("enable_activation_offloading", text, keys.where))
        return data

    def _gpus(self) -> dict[str, Any]:
        keys = self._keys
        for name in _DEGREES:
            if (keys.whole(name) or 1) > 1:
                self._unsupported["gpus"] = f"{name} above 1 is not modelled; --set gpus.count=1 predicts without it"
        keys.ignore("tensor_parallel_plan", "memory_efficient_fsdp_wrap", "fsdp_reshard_after_forward")
        copies, shards = keys.whole("data_parallel_replicate_dim") or 1, keys.whole("data_parallel_shard_dim", least=-1)
        section = keys.take("fsdp")
        offload = keys.flag("fsdp_cpu_offload") or (isinstance(section, dict) and section.get("cpu_offload") is True)
        gpus: dict[str, Any] = {}
        if shards is not None and shards > 1:
            strategy = {"strategy": "fsdp"} if copies == 1 else {"strategy": "hsdp", "replicas": copies}
            return {"count": copies * shards, **strategy, **({"offload_parameters": True} if offload else {})}
        if offload:
            gpus = {"strategy": "fsdp", "offload_parameters": True}
        self._assumed["gpus"] = "one GPU, as its single-device recipes have; the distributed ones shard over all"
        return gpus

    def _loss(self, component: dict[str, Any]) -> dict[str, Any]:
        keys = self._keys.section("loss")
        kind = (keys.text(_COMPONENT) or "").rpartition(".")[2]
        said = keys.as_dict()
        if kind == "DPOLoss":
            has_adapter = component.get("mode") == "lora"
            self._steps.append(fine_tuning.preferences(reference="adapter" if has_adapter else "copy"))
            self._notes.append(Note("preferences", fine_tuning.PREFERENCE_NOTE, self._keys.where))
        elif kind in _CHUNKED:
            chunks = said.get("num_output_chunks", _DEFAULT_CHUNKS)
            if type(chunks) is not int or not 1 <= chunks <= 4096:
                keys.fail("num_output_chunks", "a whole number from 1 to 4,096 is needed")
            self._steps.append(lambda data: {**data, "loss": [_in_pieces(data, chunks)]})
        elif kind not in ("CrossEntropyLoss", "") and not self._unsupported:
            self._unsupported["loss"] = f"loss: {kind} is not modelled; --set loss=model predicts with the usual one"
        return {}

    def _evaluation(self) -> dict[str, Any]:
        keys = self._keys
        every, batch = keys.whole("run_val_every_n_steps"), keys.whole("batch_size_val")
        if not every or keys.take("dataset_val") is None:
            return {}
        return fine_tuning.evaluation(batch or keys.whole("batch_size") or 1)


def _in_pieces(data: dict[str, Any], chunks: int) -> dict[str, Any]:
    """Models whose logits are changed after the head (Gemma 2) compute them as a whole."""
    whole = fine_tuning.model_config(data).get("model_type") == "gemma2"
    return {"kind": "model"} if whole else {"kind": "model", "chunks": chunks, "recompute": False}


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    match aspect:
        case "batch":
            return {("batch_size",): job.effective_sizes["batch"]}
        case "accumulation":
            return {("gradient_accumulation_steps",): job.accumulation}
        case "sequence" if "sequence" in job.sizes:
            return {("tokenizer", "max_seq_len"): job.sizes["sequence"]}
        case "checkpointing" if job.checkpointing.scope != "modules":
            return {("enable_activation_checkpointing",): job.checkpointing.scope == "all"}
    return {}
