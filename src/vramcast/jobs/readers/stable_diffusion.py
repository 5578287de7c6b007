"""Stable Diffusion's trainings, as the readers of diffusers' scripts and of kohya's say them: autoencoder and text
encoders make latents and states in each step, or were done with before, and a U-Net learns to predict the noise, or a
ControlNet or a text encoder learns through the U-Net."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.access import CodeGate
from vramcast.base.errors import CannotPredict, UsageError
from vramcast.jobs.folders import CONFIG, PIPELINE, pipeline_parts, read_json
from vramcast.jobs.hub_cache import cached_folder, folder_of
from vramcast.jobs.readers.code import factory_place
from vramcast.trace import Note

_PIPELINES = Path(__file__).parents[1] / "pipelines"
SD1, SD2, SDXL = (_PIPELINES / f"stable-diffusion-{version}" for version in ("1", "2", "xl"))
SD3, FLUX = _PIPELINES / "stable-diffusion-3", _PIPELINES / "flux-1-dev"
"""Their configs, without weights."""
UNCONDITIONAL = _PIPELINES / "unconditional"
"""The U-Net that diffusers' train_unconditional.py builds where no other is named."""

_KNOWN: dict[str, Path] = {
    "stable-diffusion-v1-5/stable-diffusion-v1-5": SD1,
    "runwayml/stable-diffusion-v1-5": SD1,
    "sd-legacy/stable-diffusion-v1-5": SD1,
    "compvis/stable-diffusion-v1-4": SD1,
    "stabilityai/stable-diffusion-2": SD2,
    "stabilityai/stable-diffusion-2-1": SD2,
    "stabilityai/stable-diffusion-2-base": SD2,
    "stabilityai/stable-diffusion-2-1-base": SD2,
    "stabilityai/stable-diffusion-xl-base-1.0": SDXL,
    "stabilityai/stable-diffusion-xl-base-0.9": SDXL,
    "stabilityai/stable-diffusion-3-medium-diffusers": SD3,
    "black-forest-labs/flux.1-dev": FLUX,
}
"""Names of the Hub, in small letters → configs of the same sizes."""

_TEXT_STATES = "vramcast.jobs.networks.text_states:TextStates"
_JOINED = "vramcast.jobs.networks.joined:Joined"
_TOKENS = 77
_TIME_IDS = 6
TEXT_ENCODERS = ("text_encoder", "text_encoder_2")
HALVES = {"fp16": "half()", "bf16": "bfloat16()"}
_OF_THE_UNET = {"prediction": "unet.0"}
"""What is compared where something else than the U-Net learns."""


def folder_named(name: str, where: str, notes: list[Note], folder: Path = Path(), needs: str = "unet") -> Path:
    """The pipeline's folder: as it is, in the Hugging Face cache, or the sizes of a well-known model. `needs`: the part
    that is to learn."""
    for place in (folder / os.path.expanduser(name), Path(os.path.expanduser(name))):
        if os.path.isdir(place):
            return _checked(place, needs)
    cached = cached_folder(name)
    if cached is not None:
        return _checked(cached, needs)
    known = _KNOWN.get(name.lower())
    if known is None:
        return _checked(Path(folder_of(name, is_pipeline=True)), needs)
    known = _checked(known, needs)
    notes.append(Note("model", f"{name} is not on this machine; its sizes are known here", where))
    return known


def encoders_of(folder: Path) -> list[str]:
    """Names of the pipeline's text encoders."""
    return [name for name in TEXT_ENCODERS if os.path.isfile(folder / name / CONFIG)]


def _checked(folder: Path, needs: str) -> Path:
    if not os.path.isfile(folder / PIPELINE):
        raise UsageError(f"{folder} has no {PIPELINE}: a pipeline of diffusers is needed (unet, vae, text_encoder)")
    parts = pipeline_parts(folder)
    if not {needs, "vae", "text_encoder"} <= set(parts):
        kind = read_json(folder / PIPELINE).get("_class_name", "it")
        raise CannotPredict(
            f"{folder}: {kind} has not the {needs}, vae and text_encoder that this script trains with; "
            f"`vramcast predict {folder}` predicts its training in general, `vramcast run` the script itself"
        )
    return folder


@dataclass(kw_only=True)
class Training:
    """What of the networks learns, and in which precision the rest is."""

    folder: Path
    gate: CodeGate
    batch: str = "batch"
    """Of one forward pass, as an expression."""
    half: str | None = None
    """fp16 or bf16, in which frozen networks are; None: fp32."""
    vae_dtype: str | None = None
    """Where it is another than the other frozen networks'."""
    unet: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the U-Net's component: mode, lora, dtype and so on."""
    text: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The same for each text encoder that learns."""
    vae: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the autoencoder's component."""
    latents_ready: bool = False
    """Latents come from the loader, and the autoencoder is not on the card."""
    text_ready: bool = False
    """The same for the states of the text encoders."""
    text_autocast: bool = False
    """Text encoders are called under autocast."""
    text_layer_from_end: int = 1
    """1: the text encoder's last state, 2: the one before it. SDXL always takes the one before the last."""
    chunks: int = 1
    """Pieces of 77 tokens that a text is cut into, for texts of more than 75 tokens."""
    control: Mapping[str, Any] | None = None
    """Fields of a ControlNet that learns through the frozen U-Net."""
    edits_images: bool = False
    """InstructPix2Pix: the U-Net is given the latents of the picture to edit beside the noisy ones."""
    idle: Sequence[str] = ()
    """Text encoders that stay on the card although the texts are encoded already."""

    def data(self) -> dict[str, Any]:
        """components, inputs, diffusion and loss of the job."""
        self._components: dict[str, Any] = {}
        self._inputs: dict[str, Any] = {}
        config = read_json(self.folder / "unet" / CONFIG)
        channels = int(config.get("in_channels", 4))
        clean = self._latents(channels)
        call = {"sample": "noisy", "timestep": "timesteps", **self._text_states(config)}
        unet: dict[str, Any] = {
            "diffusers": str(self.folder), "subfolder": "unet", "options": {"return_dict": False}, **self.unet,
        }  # fmt: skip
        if self.edits_images:
            call["sample"] = self._with_original()
            unet["config"] = {"in_channels": 2 * channels}
        if self.control is not None:
            call |= self._controlled(config, call, self.control)
        self._components["unet"] = {**unet, "inputs": call}
        learns = next(name for name, one in self._components.items() if one.get("mode", "trained") != "frozen")
        return {
            "components": self._components,
            "inputs": self._inputs,
            "diffusion": {"clean": clean, "schedule": "noise"},
            "loss": [
                {"kind": "mse", "target": "objective", "upcast": True, **({} if learns == "unet" else _OF_THE_UNET)}
            ],
        }

    def _controlled(self, config: Mapping[str, Any], call: dict[str, str], fields: Mapping[str, Any]) -> dict[str, str]:
        """Add a ControlNet; what the U-Net is given of it, in the U-Net's dtype."""
        self._inputs["conditions"] = {"shape": [self.batch, 3, "height", "width"]}
        then = self._in_half()
        cast = f".{HALVES[self.half]}" if self.half else ""
        self._components["controlnet"] = {
            "diffusers": str(self.folder), "subfolder": "unet", "class_name": "ControlNetModel",
            "inputs": {**call, "controlnet_cond": f"conditions{cast}"}, "options": {"return_dict": False}, **fields,
        }  # fmt: skip
        channels, layers = config["block_out_channels"], config.get("layers_per_block", 2)
        each = layers if isinstance(layers, list) else [layers] * len(channels)
        count = sum(each) + len(channels)  # one before the first block, and one for each smaller resolution
        added = {f"down_block_additional_residuals.{i}": f"controlnet.0.{i}{then}" for i in range(count)}
        return {**added, "mid_block_additional_residual": f"controlnet.1{then}"}

    def _in_half(self) -> str:
        """What a network returned that learns, for a frozen one in half precision: accelerate has made fp32 of it."""
        return f".float().{HALVES[self.half]}" if self.half else ""

    def _with_original(self) -> str:
        """Add what encodes the picture to edit, and what puts it beside the noisy latents."""
        self._inputs["originals"] = {"shape": [self.batch, 3, "height", "width"]}
        vae = self._components["vae"]
        given = str(vae["inputs"]["x"]).replace("images", "originals", 1)
        self._components["original"] = {
            "same_as": "vae", "mode": "frozen", "role": "vae", "method": "encode", "inputs": {"x": given},
            "autocast": False,
        }  # fmt: skip
        self.gate.typed(factory_place("", _JOINED))  # it is our own
        self._components["both"] = {
            "factory": _JOINED, "mode": "frozen", "role": "other", "inputs": ["noisy", "original.latent_dist.mode()"],
        }  # fmt: skip
        return "both"

    def _latents(self, channels: int) -> str:
        if self.latents_ready:
            levels = len(read_json(self.folder / "vae" / CONFIG).get("block_out_channels", ()))
            smaller = 2 ** (levels - 1) if levels else 8
            shape = [self.batch, channels, f"height // {smaller}", f"width // {smaller}"]
            self._inputs["latents"] = {"shape": shape}
            return "latents"
        self._inputs["images"] = {"shape": [self.batch, 3, "height", "width"]}
        dtype = self.vae_dtype or self.half or "fp32"
        given = f"images.{HALVES[dtype]}" if dtype in HALVES else "images"
        self._components["vae"] = {
            **self._frozen("vae", dtype), "role": "vae", "method": "encode", "inputs": {"x": given}, "autocast": False,
            **self.vae,
        }  # fmt: skip
        then = f".{HALVES[self.half]}" if dtype == "fp32" and self.half else ""
        return f"vae.latent_dist.sample(){then}"

    def _frozen(self, part: str, dtype: str) -> dict[str, Any]:
        return {"diffusers": str(self.folder), "subfolder": part, "mode": "frozen", "dtype": dtype}

    def _text_states(self, config: Mapping[str, Any]) -> dict[str, str]:
        is_xl = config.get("addition_embed_type") == "text_time"
        width = config.get("cross_attention_dim", 768)
        tokens = _TOKENS if self.chunks == 1 else self.chunks * (_TOKENS - 2) + 2
        call = {"encoder_hidden_states": "text"}
        self._inputs |= {} if not is_xl else {"time_ids": {"shape": [self.batch, _TIME_IDS]}}
        call |= {} if not is_xl else {"added_cond_kwargs.time_ids": "time_ids"}
        if self.text_ready:
            self._inputs["text"] = {"shape": [self.batch, tokens, width], "dtype": self.half or "fp32"}
            if is_xl:
                ids = _TIME_IDS * int(config["addition_time_embed_dim"])
                pooled = int(config["projection_class_embeddings_input_dim"]) - ids
                self._inputs["pooled_text"] = {"shape": [self.batch, pooled], "dtype": self.half or "fp32"}
                call["added_cond_kwargs.text_embeds"] = "pooled_text"
            for name in self.idle:
                self._components[name] = {
                    **self._frozen(name, self.half or "fp32"),
                    "role": "text-encoder",
                    "call": False,
                }
            return call
        states = [self._encoder(name, is_xl) for name in encoders_of(self.folder)]
        if is_xl:
            call["added_cond_kwargs.text_embeds"] = "text_encoder_2.text_embeds"
        if len(states) == self.chunks == 1:
            return call | {"encoder_hidden_states": states[0]}
        self.gate.typed(factory_place("", _TEXT_STATES))  # it is our own
        self._components["text"] = {
            "factory": _TEXT_STATES, "arguments": {"chunks": self.chunks}, "mode": "frozen",
            "no_grad": not self.text, "inputs": states, "role": "other",
        }  # fmt: skip
        return call

    def _encoder(self, name: str, is_xl: bool) -> str:
        """Add a text encoder to the components; what the U-Net takes of it."""
        rows = self.batch if self.chunks == 1 else f"({self.batch}) * {self.chunks}"
        tokens = f"tokens{name.removeprefix('text_encoder')}"
        vocabulary = int(read_json(self.folder / name / CONFIG).get("vocab_size", 49408))
        self._inputs[tokens] = {"shape": [rows, _TOKENS], "dtype": "int64", "below": vocabulary}
        from_end = 2 if is_xl else self.text_layer_from_end
        component: dict[str, Any] = {
            **self._frozen(name, self.half or "fp32"), "role": "text-encoder", "inputs": {"input_ids": tokens},
            "autocast": self.text_autocast or name in self.text, **self.text.get(name, {}),
        }  # fmt: skip
        if name in self.text:
            component["no_grad"] = False
        if from_end > 1:
            component["options"] = {"output_hidden_states": True}
        self._components[name] = component
        if from_end == 1:
            learns_alone = name in self.text and self.unet.get("mode") == "frozen"
            return f"{name}.last_hidden_state{self._in_half() if learns_alone else ''}"
        layers = int(read_json(self.folder / name / CONFIG)["num_hidden_layers"])
        return f"{name}.hidden_states.{layers + 1 - from_end}"
