"""Commands of diffusers' training scripts for Stable Diffusion (text_to_image, dreambooth, controlnet,
instruct_pix2pix, textual_inversion and unconditional_image_generation of its examples), Stable Diffusion 3 and Flux
(dreambooth), with the scripts' defaults. The scripts themselves are not run: `vramcast run` does that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vramcast.base.errors import CannotPredict
from vramcast.jobs.hub_cache import folder_of
from vramcast.jobs.optimizer_names import plain
from vramcast.jobs.readers import Edits, Part, Request
from vramcast.jobs.readers.flow_matching import FlowTraining
from vramcast.jobs.readers.keys import Keys, unused_note
from vramcast.jobs.readers.stable_diffusion import HALVES, UNCONDITIONAL, Training, encoders_of, folder_named
from vramcast.jobs.schema import Job
from vramcast.trace import Note

NAME = "diffusers training script"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Script:
    batch: int
    resolution: int
    targets: tuple[str, ...] = ()
    """Modules that get adapters; none: the whole U-Net learns."""
    prepared: bool = False
    """Latents and texts are encoded before the training begins, and their networks leave the card."""
    fp32_vae: bool = False
    learns: str = "unet"
    """unet, controlnet (through a frozen U-Net), embeddings (the text encoder's, through a frozen U-Net), or images: a
    U-Net without text and autoencoder."""
    edits_images: bool = False
    """The U-Net is given a second picture (InstructPix2Pix)."""
    texts_ready: bool = False
    """Texts are encoded before, and the text encoders stay on the card."""
    family: str = "Stable Diffusion"
    """Or Flux, or Stable Diffusion 3: transformers that learn by flow matching."""
    text_length: int = 77
    """Tokens of T5's text, unless --max_sequence_length says otherwise."""
    encodes_texts: bool = False
    """Flux: texts are encoded in each step, although all are the same."""
    keeps_gradients: bool = False
    """zero_grad fills gradients with zeros, unless --set_grads_to_none says otherwise."""


_ATTENTION = ("to_k", "to_q", "to_v", "to_out.0")
_JOINT_ATTENTION = tuple(
    f"attn.{name}"
    for name in ("to_k", "to_q", "to_v", "to_out.0", "add_k_proj", "add_q_proj", "add_v_proj", "to_add_out")
)
_FEED_FORWARD = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")
_FLUX, _SD3 = "Flux", "Stable Diffusion 3"
_TEXT_TARGETS = ["q_proj", "k_proj", "v_proj", "out_proj"]
SCRIPTS = {
    "train_text_to_image": _Script(batch=16, resolution=512),
    "train_text_to_image_lora": _Script(batch=16, resolution=512, targets=_ATTENTION),
    "train_text_to_image_sdxl": _Script(batch=16, resolution=1024, prepared=True),
    "train_text_to_image_lora_sdxl": _Script(batch=16, resolution=1024, targets=_ATTENTION, fp32_vae=True),
    "train_dreambooth": _Script(batch=4, resolution=512, keeps_gradients=True),
    "train_dreambooth_lora": _Script(batch=4, resolution=512, targets=(*_ATTENTION, "add_k_proj", "add_v_proj")),
    "train_dreambooth_lora_sdxl": _Script(batch=4, resolution=1024, targets=_ATTENTION, fp32_vae=True),
    "train_controlnet": _Script(batch=4, resolution=512, learns="controlnet", keeps_gradients=True),
    "train_controlnet_sdxl": _Script(
        batch=4, resolution=512, learns="controlnet", fp32_vae=True, texts_ready=True, keeps_gradients=True
    ),
    "train_instruct_pix2pix": _Script(batch=16, resolution=256, edits_images=True),
    "train_instruct_pix2pix_sdxl": _Script(
        batch=16, resolution=256, edits_images=True, fp32_vae=True, texts_ready=True
    ),
    "textual_inversion": _Script(batch=16, resolution=512, learns="embeddings"),
    "train_unconditional": _Script(batch=16, resolution=64, learns="images"),
    "train_dreambooth_flux": _Script(batch=4, resolution=512, family=_FLUX),
    "train_dreambooth_lora_flux": _Script(
        batch=4,
        resolution=512,
        family=_FLUX,
        targets=(*_JOINT_ATTENTION, *_FEED_FORWARD),
        text_length=512,
        encodes_texts=True,
    ),
    "train_dreambooth_sd3": _Script(batch=4, resolution=512, family=_SD3, fp32_vae=True),
    "train_dreambooth_lora_sd3": _Script(batch=4, resolution=512, family=_SD3, targets=_JOINT_ATTENTION, fp32_vae=True),
}
_HALF_WITH_OWN_VAE = (
    "train_text_to_image_lora_sdxl", "train_controlnet_sdxl", "train_instruct_pix2pix_sdxl",
)  # fmt: skip
"""Scripts whose fp32 autoencoder is in half precision where another one is named."""
_OTHERS = (
    "train_controlnet", "train_dreambooth", "train_text_to_image", "textual_inversion", "train_instruct_pix2pix",
    "train_unconditional", "train_lcm_distill", "train_custom_diffusion", "train_t2i_adapter", "train_cogvideox",
    "train_kandinsky", "train_wuerstchen", "train_flux", "train_cm_ct", "train_amused", "train_control", "train_cosmos",
    "train_vqgan", "train_hunyuan", "train_sana",
)  # fmt: skip
_MARKS = (
    "model_config_name_or_path",
    "pretrained_model_name_or_path",
    "train_batch_size",
    "resolution",
    "instance_data_dir",
    "dataset_name",
)
_NOT_MODELLED = {
    "dream_training": ("step", "DREAM runs the U-Net twice in a step, which is not modelled; leave it out"),
    "class_labels_conditioning": ("components", "labels beside the text are not modelled; leave it out"),
    "tokenizer_max_length": ("inputs", "texts of another length than CLIP's 77 tokens are not modelled; leave it out"),
}
_KNOWN = frozenset((
    "revision", "variant", "non_ema_revision", "dataset_name", "dataset_config_name", "train_data_dir", "image_column",
    "caption_column", "max_train_samples", "output_dir", "cache_dir", "seed", "center_crop", "random_flip",
    "num_train_epochs", "max_train_steps", "learning_rate", "scale_lr", "lr_scheduler", "lr_warmup_steps", "snr_gamma",
    "dataloader_num_workers", "adam_beta1", "adam_beta2", "adam_weight_decay", "adam_epsilon", "push_to_hub",
    "hub_token", "hub_model_id", "prediction_type", "logging_dir", "report_to", "local_rank", "checkpointing_steps",
    "checkpoints_total_limit", "resume_from_checkpoint", "noise_offset", "image_interpolation_mode",
    "input_perturbation", "tracker_project_name", "proportion_empty_prompts", "timestep_bias_strategy",
    "timestep_bias_multiplier", "timestep_bias_begin", "timestep_bias_end", "timestep_bias_portion", "debug_loss",
    "instance_data_dir", "class_data_dir", "instance_prompt", "class_prompt", "num_class_images", "sample_batch_size",
    "prior_loss_weight", "prior_generation_precision", "lr_num_cycles", "lr_power", "repeats", "text_encoder_lr",
    "validation_epochs", "validation_steps", "num_validation_images", "validation_images", "validation_scheduler",
    "tokenizer_name", "text_encoder_use_attention_mask", "skip_save_text_encoder", "offset_noise", "adam_epsilon",
    "adam_weight_decay_text_encoder", "do_edm_style_training", "output_kohya_format", "dream_detail_preservation",
    "enable_npu_flash_attention", "conditioning_image_column", "conditioning_dropout_prob", "edit_prompt_column",
    "edited_image_column", "original_image_column", "val_image_url", "val_image_url_or_path", "crops_coords_top_left_h",
    "crops_coords_top_left_w", "initializer_token", "learnable_property", "no_safe_serialization", "num_vectors",
    "placeholder_token", "save_as_full_pipeline", "save_steps", "ddpm_beta_schedule", "ddpm_num_inference_steps",
    "ddpm_num_steps", "ema_inv_gamma", "ema_max_decay", "ema_power", "eval_batch_size", "hub_private_repo", "logger",
    "num_epochs", "overwrite_output_dir", "preserve_input_precision", "save_images_epochs", "save_model_epochs",
    "controlnet_model_name_or_path", "validation_image", "guidance_scale", "logit_mean", "logit_std", "mode_scale",
    "weighting_scheme", "lora_alpha", "upcast_before_saving", "precondition_outputs",
))  # fmt: skip


def is_one(script: str, flags: Mapping[str, Any]) -> bool:
    """Whether the command is of such a script. kohya's have some of these flags too, and others of their own."""
    known = script in SCRIPTS or script.startswith(_OTHERS)
    return known and any(name in flags for name in _MARKS)


def part_from(keys: Keys, folder: Path, request: Request, script: str, launched: str | None) -> Part:
    """`launched`: the precision that accelerate was started with."""
    said = SCRIPTS.get(script)
    if script.endswith("_flax"):
        raise CannotPredict(f"{keys.where}: {script}.py trains with JAX, which is not PyTorch")
    if said is None:
        raise CannotPredict(
            f"{keys.where}: {script}.py of diffusers is not read from its flags; "
            f"`vramcast run {script}.py ...` runs the script itself on a virtual card"
        )
    return _Reader(keys, folder, request, script, said, launched).part()


class _Reader:
    def __init__(
        self, keys: Keys, folder: Path, request: Request, script: str, said: _Script, launched: str | None
    ) -> None:
        self._keys, self._folder, self._request, self._script, self._said = keys, folder, request, script, said
        self._launched = launched
        self._notes: list[Note] = []
        self._assumed: dict[str, str] = {}
        self._unsupported: dict[str, str] = {}

    def part(self) -> Part:
        keys, said = self._keys, self._said
        for name, (key, text) in _NOT_MODELLED.items():
            if keys.take(name):
                self._unsupported[key] = f"--{name}: {text}"
        preset = self._precision()
        size = keys.whole("resolution") or said.resolution
        data = {
            "name": self._script,
            "sizes": {"batch": keys.whole("train_batch_size") or said.batch, "height": size, "width": size},
            "accumulation": keys.whole("gradient_accumulation_steps", most=100_000) or 1,
            "precision": {"preset": preset, **({"tf32": True} if keys.flag("allow_tf32") else {})},
            "optimizer": self._optimizer(),
            **({} if said.learns == "embeddings" else {"gradient_clipping": keys.number("max_grad_norm") or 1.0}),
            "zero_grad": "after-step",
            "set_to_none": not said.keeps_gradients or bool(keys.flag("set_grads_to_none")),
            **({"checkpointing": {"scope": "all"}} if keys.flag("gradient_checkpointing") else {}),
            **self._trained(preset if preset in HALVES else None),
            **self._average(),
        }
        if keys.flag("enable_xformers_memory_efficient_attention"):
            self._note("attention", "xformers' attention is predicted as sdpa, which keeps the same")
        if any(keys.take(name) for name in ("validation_prompt", "validation_prompts")):
            self._note("validation", "images made between two epochs are not counted; they need no gradients")
        self._notes += unused_note(keys.unused(_KNOWN), keys.where)
        return Part(
            data=data, recognised_as=f"{NAME} ({self._script})", where=keys.where, notes=tuple(self._notes),
            assumed=self._assumed, unsupported=self._unsupported,
        )  # fmt: skip

    def _note(self, kind: str, text: str) -> None:
        self._notes.append(Note(kind, text, self._keys.where))

    def _precision(self) -> str:
        said = self._keys.text("mixed_precision", ("no", "fp16", "bf16"))
        if said is None and self._launched is None:
            self._assumed["precision"] = "mixed_precision no, which neither the command nor an accelerate config says"
        if said is None:
            return self._launched or "fp32"
        return "fp32" if said == "no" else said

    def _trained(self, half: str | None) -> dict[str, Any]:
        if self._said.learns == "images":
            return self._images()
        return self._networks(half) if self._said.family == "Stable Diffusion" else self._flow(half)

    def _flow(self, half: str | None) -> dict[str, Any]:
        keys, said = self._keys, self._said
        folder = folder_named(self._model(), keys.where, self._notes, self._folder, needs="transformer")
        if keys.flag("train_text_encoder"):
            self._unsupported["components"] = "--train_text_encoder: not modelled for this script; leave it out"
        own_captions = keys.take("caption_column") is not None
        if own_captions and said.family != _FLUX:
            text = (
                "--caption_column: texts that are encoded in each step are not modelled for this script; leave it out"
            )
            self._unsupported["components"] = text
        encodes = said.family == _FLUX and (said.encodes_texts or own_captions)
        if encodes:
            self._note("encoders", "CLIP and T5 stay on the card and encode the texts in each step, as the script does")
        else:
            self._note("encoders", "the text encoders have left the card when the training begins")
        targets = [one.strip() for one in (keys.text("lora_layers") or "").split(",") if one.strip()]
        targets = targets or list(said.targets)
        if (blocks := keys.text("lora_blocks")) is not None:
            targets = [f"transformer_blocks.{one.strip()}.{name}" for one in blocks.split(",") for name in targets]
        ready = bool(keys.flag("cache_latents"))
        if ready and keys.take("validation_prompt"):
            self._note("autoencoder", "it stays on the card for the validation and is not counted")
        return FlowTraining(
            folder=folder,
            is_flux=said.family == _FLUX,
            gate=self._request.gate,
            batch=self._rows(),
            half=half,
            vae_dtype="fp32" if said.fp32_vae else None,
            transformer=self._learning(half, targets),
            tokens=keys.whole("max_sequence_length") or said.text_length,
            texts_ready=not encodes,
            latents_ready=ready,
        ).data()

    def _model(self) -> str:
        keys = self._keys
        name = self._request.model or keys.text("pretrained_model_name_or_path")
        keys.ignore("pretrained_model_name_or_path")
        if name is None:
            keys.need("pretrained_model_name_or_path", "stable-diffusion-v1-5/stable-diffusion-v1-5")
        return name

    def _rows(self) -> str:
        """Images of one forward pass."""
        if not self._keys.flag("with_prior_preservation"):
            return "batch"
        text = "each batch has as many images of the class beside those of the instance"
        self._note("prior preservation", text)
        return "2 * batch"

    def _networks(self, half: str | None) -> dict[str, Any]:
        keys, said = self._keys, self._said
        pipeline = folder_named(self._model(), keys.where, self._notes, self._folder)
        learning = encoders_of(pipeline) if keys.flag("train_text_encoder") else []
        text = {encoder: self._learning(half, _TEXT_TARGETS) for encoder in learning}
        if said.learns == "embeddings":
            text["text_encoder"] = {"mode": "trained", "train_only": ["*token_embedding*"], "dtype": "fp32"}
        own_vae = keys.text("pretrained_vae_model_name_or_path") is not None
        vae_precision = keys.text("vae_precision", ("fp32", "fp16", "bf16")) or "fp32"
        keeps_vae = said.fp32_vae and not (own_vae and self._script in _HALF_WITH_OWN_VAE)
        if own_vae:
            self._note("model", "pretrained_vae_model_name_or_path is taken to be of the same sizes as the model's own")
        ready = bool(keys.flag("pre_compute_text_embeddings"))
        if said.prepared:
            self._note("encoders", "autoencoder and text encoders have left the card when the training begins")
        whole = {"mode": "trained", "dtype": "fp32"}
        return Training(
            folder=pipeline,
            gate=self._request.gate,
            batch=self._rows(),
            half=half,
            vae_dtype=vae_precision if keeps_vae else None,
            unet=self._learning(half, list(said.targets)) if said.learns == "unet" else self._learned_through(half),
            text=text,
            latents_ready=said.prepared,
            text_ready=said.prepared or said.texts_ready or ready,
            idle=encoders_of(pipeline) if said.texts_ready else (),
            control=whole if said.learns == "controlnet" else None,
            edits_images=said.edits_images,
        ).data()

    def _learned_through(self, half: str | None) -> dict[str, Any]:
        """A frozen U-Net through which gradients go. accelerate did not prepare it, so it runs outside autocast."""
        frozen = {"mode": "frozen", "dtype": half or "fp32", "no_grad": False, "autocast": False, "role": "other"}
        if self._said.learns == "embeddings":
            return {**frozen, "training_mode": bool(self._keys.flag("gradient_checkpointing"))}
        return {**frozen, "checkpointing": {"scope": "none"}}

    def _images(self) -> dict[str, Any]:
        """train_unconditional.py: its own U-Net, or that of a config that it names."""
        name = self._request.model or self._keys.text("model_config_name_or_path")
        folder = UNCONDITIONAL if name is None else Path(folder_of(name))
        return {"components": {"unet": {"diffusers": str(folder)}}}

    def _learning(self, half: str | None, targets: list[str]) -> dict[str, Any]:
        """What learns is in fp32; of LoRA, the base is in half precision, and so are adapters for bf16."""
        keys = self._keys
        rank, dropout = keys.whole("rank", most=65_536) or 4, keys.number("lora_dropout") or 0.0
        if not self._said.targets:
            return {"mode": "trained", "dtype": "fp32"}
        lora = {
            "rank": rank, "alpha": rank, "dropout": dropout, "targets": targets, "dora": bool(keys.flag("use_dora")),
            "dtype": "bf16" if half == "bf16" else "fp32",
        }  # fmt: skip
        return {"mode": "lora", "lora": lora, "dtype": half or "fp32"}

    def _optimizer(self) -> dict[str, Any]:
        keys = self._keys
        name = (keys.text("optimizer") or "adamw").lower()
        if name != "adamw":
            self._unsupported["optimizer"] = f"--optimizer {name} is not modelled; name another with --optimizer"
            keys.ignore("prodigy_beta3", "prodigy_decouple", "prodigy_use_bias_correction", "prodigy_safeguard_warmup")
        return {"name": "adamw8bit" if keys.flag("use_8bit_adam") else "adamw"}

    def _average(self) -> dict[str, Any]:
        keys = self._keys
        if not keys.flag("use_ema"):
            keys.ignore("offload_ema", "foreach_ema")
            return {}
        if keys.flag("offload_ema"):
            self._note("EMA", "its copy is on the card while it is updated, after the step; predicted as if it stayed")
        return {"ema": {"update": "differences" if keys.flag("foreach_ema") else "loop", "device": "gpu"}}


def edits(keys: Keys, aspect: str, job: Job) -> Edits:
    """Flags that say it. Switches are there or not, without a value."""
    sizes = job.effective_sizes
    match aspect:
        case "batch":
            return {("train_batch_size",): sizes["batch"]}
        case "accumulation":
            return {("gradient_accumulation_steps",): job.accumulation}
        case "resolution" if sizes["height"] == sizes["width"]:
            return {("resolution",): sizes["height"]}
        case "precision" if job.precision.weights_dtype == "fp32":
            wanted = job.precision.autocast_dtype
            return {("mixed_precision",): "no" if wanted == "none" else wanted}
        case "checkpointing" if job.checkpointing.scope != "modules":
            return {("gradient_checkpointing",): job.checkpointing.scope == "all"}
        case "optimizer" if len(job.optimizer) == 1 and not job.optimizer[0].arguments:
            name = plain(job.optimizer[0].name)
            return {("use_8bit_adam",): name == "adamw8bit"} if name in ("adamw", "adamw8bit") else {}
        case "ema" if job.ema is None:
            return {("use_ema",): False}
    return {}
