"""kohya's sd-scripts for Stable Diffusion 1, 2 and XL: LoRA (train_network.py, sdxl_train_network.py) and whole models
(fine_tune.py, train_db.py, sdxl_train.py), as a command or as the TOML of `--config_file`, with the scripts' defaults.
The U-Net is diffusers' of the same structure."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.optimizer_names import optimizer_named
from vramcast.jobs.readers import Edits, Part, Reading, Request, combine
from vramcast.jobs.readers.documents import beside, peek, read_document
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.readers.stable_diffusion import HALVES, SD1, SD2, SDXL, Training, encoders_of, folder_named
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "kohya sd-scripts config"

LORA, WHOLE = ("train_network", "sdxl_train_network"), ("fine_tune", "train_db", "sdxl_train")
_MARKS = ("network_module", "dataset_config", "in_json", "save_model_as", "xformers", "sdpa", "cache_latents")
"""Flags of its scripts that diffusers' have not."""
_OTHERS = (
    "flux_train", "sd3_train", "lumina_train", "anima_train", "hunyuan_image_train", "train_textual_inversion",
    "sdxl_train_textual_inversion", "sdxl_train_control_net", "train_control_net", "sdxl_train_leco", "train_leco",
)  # fmt: skip
_ADAPTED = ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2"]
"""Linear layers and 1 × 1 convolutions of Transformer2DModel."""
_ADAPTED_CONVOLUTIONS = ["conv1", "conv2", "conv_shortcut", "time_emb_proj", "downsamplers.0.conv", "upsamplers.0.conv"]
"""With conv_dim: those of ResnetBlock2D, Downsample2D and Upsample2D too."""
_ADAPTED_TEXT = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]
_DEFAULT_RANK = 4
_CHECKPOINTED = {"scope": "modules", "modules": ["*.resnets.?", "*.attentions.?"]}
"""Of its own U-Net for Stable Diffusion 1 and 2; that for XL checkpoints the same parts as diffusers'."""
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw"},
    "adamw8bit": {"name": "adamw8bit"},
    "pagedadamw8bit": {"name": "paged-adamw8bit"},
    "pagedadamw": {"name": "paged-adamw"},
    "pagedadamw32bit": {"name": "paged-adamw"},
    "lion": {"name": "lion"},
    "lion8bit": {"name": "lion8bit"},
    "pagedlion8bit": {"name": "paged-lion8bit"},
    "sgdnesterov": {"name": "sgd", "arguments": {"momentum": 0.9, "nesterov": True}},
    "sgdnesterov8bit": {"name": "sgd8bit", "arguments": {"momentum": 0.9, "nesterov": True}},
    "adafactor": {"name": "transformers-adafactor"},
}
"""optimizer_type, in small letters → the job's."""
_SPELT = ("AdamW", "AdamW8bit", "PagedAdamW8bit", "PagedAdamW", "Lion", "Lion8bit", "SGDNesterov", "AdaFactor")
"""As its documentation writes them."""
_ADAFACTOR = {"relative_step": True, "scale_parameter": True, "warmup_init": False}
_NOT_MODELLED = {
    "fp8_base": ("components", "weights in fp8 are not modelled; leave it out"),
    "fp8_base_unet": ("components", "weights in fp8 are not modelled; leave it out"),
    "network_train_text_encoder_only": ("components", "adapters in the text encoder alone are not modelled"),
    "fused_backward_pass": ("optimizer", "gradients that are applied one by one are not modelled; leave it out"),
    "fused_optimizer_groups": ("optimizer", "gradients that are applied in groups are not modelled; leave it out"),
    "optimizer_schedulefree_wrapper": ("optimizer", "schedule-free optimizers are not modelled; leave it out"),
    "cpu_offload_checkpointing": ("checkpointing", "it is said with --set offload=activations instead"),
    "deepspeed": ("gpus", "DeepSpeed is not modelled; --set gpus.strategy=ddp predicts without it"),
    "blocks_to_swap": ("offload", "blocks that wait in the computer's memory are not modelled; leave it out"),
    "masked_loss": ("loss", "a loss with masks is not modelled; leave it out"),
    "weighted_captions": ("inputs", "weighted captions are not modelled; leave it out"),
}  # fmt: skip
_KNOWN = frozenset((
    "output_dir", "output_name", "save_model_as", "learning_rate", "unet_lr", "text_encoder_lr", "text_encoder_lr1",
    "text_encoder_lr2", "learning_rate_te", "lr_scheduler", "lr_scheduler_type", "lr_scheduler_args",
    "lr_scheduler_num_cycles", "lr_scheduler_power", "lr_warmup_steps", "lr_decay_steps", "max_train_epochs",
    "max_train_steps", "save_every_n_epochs", "save_every_n_steps", "save_precision", "save_state",
    "save_state_on_train_end", "save_n_epoch_ratio", "save_last_n_epochs", "save_last_n_steps", "seed", "resume",
    "max_data_loader_n_workers", "persistent_data_loader_workers", "logging_dir", "log_with", "log_prefix",
    "log_tracker_name", "wandb_run_name", "log_config", "wandb_api_key", "network_alpha", "network_weights",
    "dim_from_weights", "scale_weight_norms", "training_comment", "no_metadata", "base_weights", "prior_loss_weight",
    "base_weights_multiplier", "v_parameterization", "noise_offset", "noise_offset_random_strength", "min_snr_gamma",
    "multires_noise_iterations", "multires_noise_discount", "ip_noise_gamma", "adaptive_noise_scale",
    "zero_terminal_snr", "min_timestep", "max_timestep", "loss_type", "huber_schedule", "huber_c", "huber_scale",
    "sample_every_n_steps", "sample_every_n_epochs", "sample_at_first", "sample_prompts", "sample_sampler", "lowram",
    "highvram", "train_data_dir", "reg_data_dir", "in_json", "cache_info", "shuffle_caption", "caption_separator",
    "caption_extension", "caption_extention", "keep_tokens", "keep_tokens_separator", "color_aug", "flip_aug",
    "face_crop_aug_range", "random_crop", "debug_dataset", "cache_latents_to_disk", "skip_cache_check",
    "cache_text_encoder_outputs_to_disk", "min_bucket_reso", "max_bucket_reso", "bucket_reso_steps",
    "bucket_no_upscale", "caption_dropout_rate", "caption_dropout_every_n_epochs", "caption_tag_dropout_rate",
    "dataset_repeats", "dataset_class", "use_safetensors", "tokenizer_cache_dir", "metadata_title",
    "metadata_author", "metadata_description", "metadata_license", "metadata_tags", "scale_v_pred_loss_like_noise_pred",
    "v_pred_like_loss", "debiased_estimation_loss", "ddp_timeout", "validation_split", "validation_seed",
    "validate_every_n_steps", "validate_every_n_epochs", "max_validation_steps", "prior_loss_weight", "block_lr",
    "vae", "dynamo_backend", "secondary_separator", "enable_wildcard", "caption_prefix", "caption_suffix",
    "token_warmup_min", "token_warmup_step", "console_log_level", "console_log_file", "console_log_simple",
    "initial_epoch", "initial_step", "skip_until_initial_step", "stop_text_encoder_training", "conditioning_data_dir",
    "huggingface_repo_id", "huggingface_repo_type", "huggingface_path_in_repo", "huggingface_token", "output_config",
    "huggingface_repo_visibility", "save_state_to_huggingface", "resume_from_huggingface", "async_upload", "alpha_mask",
    "disable_mmap_load_safetensors", "resize_interpolation", "num_cpu_threads_per_process", "diffusers_xformers",
    "no_token_padding", "text_encoder_batch_size",
))  # fmt: skip


def recognises(path: Path) -> bool:
    said = _flat(peek(path, ".toml"))
    if "pretrained_model_name_or_path" in said or "network_module" in said:
        return any(name in said for name in (*_MARKS, "train_batch_size", "optimizer_type", "mixed_precision"))
    datasets = said.get("datasets")
    return isinstance(datasets, list) and any(isinstance(one, dict) and "subsets" in one for one in datasets)


def is_one(script: str, flags: Mapping[str, Any]) -> bool:
    if script.startswith(_OTHERS) or script in (*LORA, *WHOLE):
        names = ("pretrained_model_name_or_path", "config_file", "network_module", "dataset_config", "validation_split")
        return any(name in flags for name in names)
    return False


def read(path: Path, request: Request) -> Reading:
    return combine.complete([read_part(path, request)], request)


def read_part(path: Path, request: Request) -> Part:
    document = read_document(path)
    said = _flat(document.data)
    if "datasets" in said and "pretrained_model_name_or_path" not in said:
        raise UsageError(
            f"{path}: a dataset config of kohya's sd-scripts says which images are trained on, not what learns: give "
            f"the command, vramcast predict -- accelerate launch train_network.py --dataset_config {path} ..."
        )
    name = str(said.get("pretrained_model_name_or_path", "")).lower()
    is_xl = "xl" in name or any(said.get(key) for key in ("cache_text_encoder_outputs", "text_encoder_lr1"))
    has_adapters = said.get("network_module") is not None
    script = ("sdxl_" if is_xl else "") + ("train_network" if has_adapters else "train" if is_xl else "fine_tune")
    part = part_from(Keys(said, str(path)), path.parent, request, script, None)
    text = f"it is for {script}.py, which a file does not say; after `--`, the command does"
    return Part(
        data=part.data, recognised_as=part.recognised_as, where=part.where, unsupported=part.unsupported,
        notes=(Note("assumed", text, str(path)), *part.notes), assumed=part.assumed,
    )  # fmt: skip


def _flat(document: Any) -> dict[str, Any]:
    """Sections only put keys in order."""
    said: dict[str, Any] = {}
    for name, value in (document if isinstance(document, dict) else {}).items():
        said |= {str(key): one for key, one in value.items()} if isinstance(value, dict) else {str(name): value}
    return said


def part_from(keys: Keys, folder: Path, request: Request, script: str, launched: str | None) -> Part:
    """`launched`: the precision that accelerate was started with, which the scripts overrule."""
    if script not in (*LORA, *WHOLE):
        raise CannotPredict(
            f"{keys.where}: {script}.py of kohya's sd-scripts is not modelled; those that are: "
            f"{', '.join((*LORA, *WHOLE))} (Stable Diffusion 1, 2 and XL). `vramcast run {script}.py ...` runs the "
            "script itself on a virtual card"
        )
    file = keys.text("config_file")
    if file is not None:
        path = beside(file if file.endswith(".toml") else f"{file}.toml", folder)
        flags = {name: value for name, value in keys.as_dict().items() if name != "config_file"}
        keys = Keys({**_flat(read_document(path).data), **flags}, keys.where)
    return _Reader(keys, folder, request, script, launched).part()


class _Reader:
    def __init__(self, keys: Keys, folder: Path, request: Request, script: str, launched: str | None) -> None:
        self._keys, self._folder, self._request, self._script = keys, folder, request, script
        self._is_xl, self._has_adapters = script.startswith("sdxl"), script in LORA
        self._notes: list[Note] = []
        self._unsupported: dict[str, str] = {}
        said = keys.text("mixed_precision", ("no", "fp16", "bf16")) or "no"
        self._preset = "fp32" if said == "no" else said
        self._half = said if said in HALVES else None
        if launched not in (None, self._preset):
            self._note("precision", f"mixed_precision is the script's own, {said}, whatever accelerate is started with")
        wholly = [name for name in ("full_fp16", "full_bf16") if keys.flag(name)]
        if wholly and wholly[0].removeprefix("full_") != said:
            keys.fail(wholly[0], f"it needs mixed_precision {wholly[0].removeprefix('full_')}, as sd-scripts says")
        self._all_half = bool(wholly)

    def part(self) -> Part:
        keys = self._keys
        for name, (key, text) in _NOT_MODELLED.items():
            if keys.take(name):
                self._unsupported[key] = f"{name}: {text}"
        norm = keys.number("max_grad_norm")
        data: dict[str, Any] = {
            "name": keys.text("output_name") or self._script,
            "sizes": self._sizes(),
            "accumulation": keys.whole("gradient_accumulation_steps", most=100_000) or 1,
            "precision": {"preset": self._preset},
            "optimizer": self._optimizer(),
            "zero_grad": "after-step",
            **({} if norm == 0 else {"gradient_clipping": 1.0 if norm is None else norm}),
        }
        data |= self._networks()
        if keys.flag("torch_compile"):
            data["torch_compile"] = True
        parallel = {"gradient_as_bucket_view": "ddp_gradient_as_bucket_view", "static_graph": "ddp_static_graph"}
        gpus = {field: True for field, name in parallel.items() if keys.flag(name)}
        data |= {"gpus": gpus} if gpus else {}
        if keys.take("sample_prompts"):
            self._note("samples", "images made between two steps are not counted; they need no gradients")
        self._notes += unused_note(keys.unused(_KNOWN), keys.where)
        return Part(
            data=data, recognised_as=f"{NAME} ({self._script})", where=keys.where, notes=tuple(self._notes),
            unsupported=self._unsupported,
        )  # fmt: skip

    def _note(self, topic: str, text: str) -> None:
        self._notes.append(Note(topic, text, self._keys.where))

    # -- images ---------------------------------------------------------------------------------------------

    def _sizes(self) -> dict[str, int]:
        keys = self._keys
        file = keys.text("dataset_config")
        sets = self._datasets(beside(file, self._folder)) if file is not None else []
        if not sets:
            batch, resolution = keys.whole("train_batch_size") or 1, keys.take("resolution")
            if resolution is None:
                keys.need("resolution", '512, or "768,512", or a dataset_config that says it')
            width, height = self._pair(keys, "resolution", resolution)
            sets = [(batch, width, height, bool(keys.flag("enable_bucket")))]
        else:
            keys.ignore("train_batch_size", "resolution", "enable_bucket")
        batch, width, height, buckets = max(sets, key=lambda one: math.prod(one[:3]))
        if len({one[:3] for one in sets}) > 1:
            self._note("datasets", f"of {len(sets)}, the one whose batch has most pixels: {batch} × {width} × {height}")
        if buckets:
            self._note("buckets", f"images of other shapes have at most as many pixels as {width} × {height}")
        return {"batch": batch, "height": height, "width": width}

    def _datasets(self, path: Path) -> list[tuple[int, int, int, bool]]:
        """Batch, width, height and whether there are buckets, of each dataset."""
        document = read_document(path)
        keys = Keys.of(document, str(path))
        general, found = keys.section("general"), []
        sets = keys.take("datasets")
        for i, one in enumerate(sets if isinstance(sets, list) else [{}]):
            own = Keys(one, str(path), document.line_of, ("datasets", i))
            place = next((place for place in (own, general) if "resolution" in place), None)
            resolution = place.take("resolution") if place else self._keys.take("resolution")
            if resolution is None:
                own.need("resolution", "512")
            width, height = self._pair(place or self._keys, "resolution", resolution)
            batch = own.whole("batch_size") or general.whole("batch_size") or self._keys.whole("train_batch_size") or 1
            buckets = next((flag for flag in (own.flag("enable_bucket"), general.flag("enable_bucket")) if flag), False)
            found.append((batch, width, height, bool(buckets)))
        return found

    @staticmethod
    def _pair(keys: Keys, name: str, value: Any) -> tuple[int, int]:
        """Width and height, from 512, "512,768" or [512, 768]."""
        parts = value if isinstance(value, list) else str(value).split(",")
        numbers = [int(str(part)) for part in parts if str(part).strip().isdecimal() and len(str(part)) < 6]
        if len(numbers) != len(parts) or not 1 <= len(numbers) <= 2 or min(numbers) < 64:
            keys.fail(name, f'a size or two are needed, e.g. 512 or "512,768", not {value!r:.40}')
        return numbers[0], numbers[-1]

    # -- networks -------------------------------------------------------------------------------------------

    def _networks(self) -> dict[str, Any]:
        keys = self._keys
        folder = self._pipeline()
        again = bool(keys.flag("gradient_checkpointing"))
        unet = {**self._learning(_ADAPTED, conv=True), **self._attention()}
        if again and not self._is_xl:
            unet["checkpointing"] = _CHECKPOINTED
        text = {name: self._learning_text(name) for name in self._learning_encoders(folder)}
        latents_ready = bool(keys.flag("cache_latents") or keys.flag("cache_latents_to_disk"))
        text_ready = bool(keys.flag("cache_text_encoder_outputs"))
        if text_ready and text:
            keys.fail(
                "cache_text_encoder_outputs",
                "text encoders that learn cannot be cached, as sd-scripts says: "
                + ("give network_train_unet_only too" if self._has_adapters else "leave train_text_encoder out"),
            )
        slices = keys.whole("vae_batch_size") or 1
        vae = {"prepare": ["enable_slicing"]} if self._has_adapters and slices == 1 else {}
        skip = keys.whole("clip_skip", most=12) or 1
        length = keys.whole("max_token_length") or 75
        if length not in (75, 150, 225):
            keys.fail("max_token_length", f"75, 150 or 225 are possible, not {length}")
        training = Training(
            folder=folder,
            gate=self._request.gate,
            half=self._half,
            vae_dtype="fp32" if keys.flag("no_half_vae") else None,
            unet=unet,
            text=text,
            vae=vae,
            latents_ready=latents_ready,
            text_ready=text_ready,
            text_autocast=self._has_adapters,
            text_layer_from_end=skip,
            chunks=length // 75,
        )
        return {**training.data(), **({"checkpointing": {"scope": "all"}} if again else {})}

    def _pipeline(self) -> Path:
        keys = self._keys
        known = SDXL if self._is_xl else SD2 if keys.flag("v2") else SD1
        name = self._request.model or keys.text("pretrained_model_name_or_path")
        keys.ignore("pretrained_model_name_or_path", "v2")
        if name is not None and (self._request.model or os.path.isdir(beside(name, self._folder))):
            return folder_named(name, keys.where, self._notes, self._folder)
        text = (
            f"{name or 'the model'} is taken to be a {known.name}, which {self._script}.py trains; no weights are read"
        )
        self._note("model", text)
        return known

    def _learning_encoders(self, folder: Path) -> list[str]:
        keys = self._keys
        encoders = encoders_of(folder)
        if self._has_adapters:
            return [] if keys.flag("network_train_unet_only") else encoders
        if self._script == "train_db":
            until = keys.whole("stop_text_encoder_training", least=-1)
            return [] if until is not None and until < 0 else encoders
        if not keys.flag("train_text_encoder"):
            return []
        rates = {"text_encoder": keys.number("learning_rate_te1"), "text_encoder_2": keys.number("learning_rate_te2")}
        return [name for name in encoders if not self._is_xl or rates[name] != 0]

    def _learning(self, targets: list[str], *, conv: bool = False) -> dict[str, Any]:
        if not self._has_adapters:
            return {"mode": "trained", "dtype": self._half if self._all_half else "fp32"}
        keys = self._keys
        module = keys.text("network_module")
        if module not in (None, "networks.lora", "lora"):
            self._unsupported["components"] = f"network_module: {module} is not modelled; networks.lora is"
        rank = keys.whole("network_dim", most=65_536) or _DEFAULT_RANK
        extra = self._network_arguments()
        if conv and "conv_dim" in extra:
            targets = [*targets, *_ADAPTED_CONVOLUTIONS]
            if extra["conv_dim"] != str(rank):
                text = (
                    f"network_args: conv_dim={extra['conv_dim']} beside network_dim {rank}: only one rank is modelled"
                )
                self._unsupported["components"] = text
        lora = {
            "rank": rank, "alpha": keys.number("network_alpha") or 1, "dropout": keys.number("network_dropout") or 0.0,
            "targets": targets, "dtype": self._half if self._all_half else "fp32", "cast_inputs": False,
        }  # fmt: skip
        return {"mode": "lora", "lora": lora, "dtype": self._half or "fp32"}

    def _learning_text(self, name: str) -> dict[str, Any]:
        component = self._learning(_ADAPTED_TEXT)
        if self._script == "sdxl_train" and name == "text_encoder":  # its last layer is not used
            component["freeze"] = ["*encoder.layers.11.*", "*final_layer_norm*"]
        return component

    def _network_arguments(self) -> dict[str, str]:
        """network_args: a list of name=value."""
        said = self._keys.take("network_args")
        words = said if isinstance(said, list) else str(said).split() if said else []
        found = dict(str(word).split("=", 1) for word in words if "=" in str(word))
        weightless = ("conv_alpha", "dropout", "rank_dropout", "module_dropout", "loraplus_lr_ratio")
        matters = [name for name in found if name not in ("conv_dim", *weightless) and not name.startswith("loraplus")]
        if matters:
            self._unsupported["components"] = f"network_args: {matters[0]} is not modelled; leave it out"
        return found

    def _attention(self) -> dict[str, Any]:
        keys = self._keys
        ways = [name for name in ("sdpa", "xformers", "mem_eff_attn", "diffusers_xformers") if keys.flag(name)]
        if not ways:
            text = "neither sdpa nor xformers: attention keeps its whole matrix of weights"
            self._note("attention", text)
            return {"prepare": ["set_default_attn_processor"]}
        if ways[0] != "sdpa":
            self._note("attention", f"{ways[0]} is predicted as sdpa, which keeps the same")
        return {}

    # -- optimizer ------------------------------------------------------------------------------------------

    def _optimizer(self) -> dict[str, Any]:
        keys = self._keys
        name = keys.text("optimizer_type") or ""
        name = name or (
            "AdamW8bit" if keys.flag("use_8bit_adam") else "Lion" if keys.flag("use_lion_optimizer") else ""
        )
        keys.ignore("use_8bit_adam", "use_lion_optimizer")
        wish = _OPTIMIZERS.get((name or "AdamW").lower())
        said = keys.take("optimizer_args")
        words = said if isinstance(said, list) else str(said).split() if said else []
        if wish is None:
            self._unsupported["optimizer"] = f"optimizer_type: {name} is not modelled; name another with --optimizer"
            return {"name": "adamw"}
        if wish["name"] != "transformers-adafactor":
            return wish
        given = dict(str(word).split("=", 1) for word in words if "=" in str(word))
        arguments: dict[str, Any] = {
            key: given.get(key, str(value)).strip().lower() == "true" for key, value in _ADAFACTOR.items()
        }
        return {**wish, "arguments": {**arguments, "lr": None if arguments["relative_step"] else 1e-4}}


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    """Flags, or keys of the TOML, that say it; what a dataset config says is not changed."""
    sizes = job.effective_sizes
    has_datasets = "dataset_config" in keys
    match aspect:
        case "batch" if not has_datasets:
            return {("train_batch_size",): sizes["batch"]}
        case "accumulation":
            return {("gradient_accumulation_steps",): job.accumulation}
        case "resolution" if not has_datasets:
            width, height = sizes["width"], sizes["height"]
            return {("resolution",): str(width) if width == height else f"{width},{height}"}
        case "precision" if job.precision.weights_dtype == "fp32":
            wanted = job.precision.autocast_dtype
            return {("mixed_precision",): "no" if wanted == "none" else wanted}
        case "checkpointing" if job.checkpointing.scope != "modules":
            return {("gradient_checkpointing",): job.checkpointing.scope == "all"}
        case "optimizer":
            name = optimizer_named(_OPTIMIZERS, job.optimizer[0]) if len(job.optimizer) == 1 else None
            spelt = next((one for one in _SPELT if one.lower() == name), name)
            return {("optimizer_type",): spelt} if spelt else {}
    return {}
