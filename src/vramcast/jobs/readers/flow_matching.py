"""Trainings of Flux and Stable Diffusion 3, as diffusers' scripts do them: an autoencoder makes latents in each step, a
transformer learns to predict the way from them to noise, and texts are encoded in each step or were before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.base.access import CodeGate
from vramcast.jobs.folders import CONFIG, read_json
from vramcast.jobs.readers.code import factory_place
from vramcast.jobs.readers.stable_diffusion import HALVES

_PACKED, _UNPACKED = (f"vramcast.jobs.networks.packed_latents:{name}" for name in ("Packed", "Unpacked"))
_CLIP_TOKENS = 77


@dataclass(kw_only=True)
class FlowTraining:
    """What the scripts for both have in common; `is_flux` says which it is."""

    folder: Path
    is_flux: bool
    gate: CodeGate
    batch: str = "batch"
    """Of one forward pass, as an expression."""
    half: str | None = None
    """fp16 or bf16, in which frozen networks are; None: fp32."""
    vae_dtype: str | None = None
    """Where it is another than the other frozen networks'."""
    transformer: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the transformer's component: mode, lora, dtype and so on."""
    tokens: int = 512
    """Of the text that T5 encodes."""
    texts_ready: bool = True
    """Texts were encoded before, and the text encoders have left the card."""
    latents_ready: bool = False
    """Latents were made before, and the autoencoder has left the card."""

    def data(self) -> dict[str, Any]:
        """components, inputs, diffusion and loss of the job."""
        config = read_json(self.folder / "transformer" / CONFIG)
        self._components: dict[str, Any] = {}
        self._inputs: dict[str, Any] = {}
        clean = self._latents()
        prediction = self._called(config, {"timestep": "timesteps", **self._texts(config)})
        return {
            "components": self._components,
            "inputs": self._inputs,
            "diffusion": {"clean": clean, "schedule": "flow"},
            "loss": [{"kind": "mse", "prediction": prediction, "target": "objective", "upcast": True}],
        }

    def _frozen(self, part: str, dtype: str | None) -> dict[str, Any]:
        return {
            "diffusers": str(self.folder), "subfolder": part, "mode": "frozen", "dtype": dtype or self.half or "fp32",
            "autocast": False,
        }  # fmt: skip

    def _latents(self) -> str:
        config = read_json(self.folder / "vae" / CONFIG)
        if self.latents_ready:
            smaller = 2 ** (len(config["block_out_channels"]) - 1)
            shape = [self.batch, int(config["latent_channels"]), f"height // {smaller}", f"width // {smaller}"]
            self._inputs["latents"] = {"shape": shape, "dtype": self.half or "fp32", "made_on": "gpu"}
            return "latents"
        self._inputs["images"] = {"shape": [self.batch, 3, "height", "width"]}
        dtype = self.vae_dtype or self.half or "fp32"
        given = f"images.{HALVES[dtype]}" if dtype in HALVES else "images"
        self._components["vae"] = {
            **self._frozen("vae", dtype), "role": "vae", "method": "encode", "inputs": {"x": given},
        }  # fmt: skip
        then = f".{HALVES[self.half]}" if dtype == "fp32" and self.half else ""
        return f"vae.latent_dist.sample(){then}"

    def _texts(self, config: Mapping[str, Any]) -> dict[str, str]:
        pooled, width = int(config["pooled_projection_dim"]), int(config["joint_attention_dim"])
        if not self.texts_ready:
            self._encoder("text_encoder", "tokens", _CLIP_TOKENS)
            self._encoder("text_encoder_2", "tokens_2", self.tokens)
            return {
                "encoder_hidden_states": "text_encoder_2.last_hidden_state",
                "pooled_projections": "text_encoder.pooler_output",
            }
        length = self.tokens if self.is_flux else self.tokens + _CLIP_TOKENS  # SD3 joins CLIP's tokens and T5's
        dtype = self.half or "fp32"
        self._inputs["text"] = {"shape": [self.batch, length, width], "dtype": dtype, "made_on": "gpu"}
        self._inputs["pooled_text"] = {"shape": [self.batch, pooled], "dtype": dtype, "made_on": "gpu"}
        return {"encoder_hidden_states": "text", "pooled_projections": "pooled_text"}

    def _encoder(self, name: str, tokens: str, length: int) -> None:
        vocabulary = int(read_json(self.folder / name / CONFIG)["vocab_size"])
        self._inputs[tokens] = {"shape": [self.batch, length], "dtype": "int64", "below": vocabulary}
        self._components[name] = {
            **self._frozen(name, None), "role": "text-encoder", "inputs": {"input_ids": tokens},
        }  # fmt: skip

    def _called(self, config: Mapping[str, Any], call: dict[str, str]) -> str:
        """Add the transformer; what is compared with the objective."""
        transformer = {
            "diffusers": str(self.folder), "subfolder": "transformer", "options": {"return_dict": False},
            **self.transformer,
        }  # fmt: skip
        if not self.is_flux:
            self._components["transformer"] = {**transformer, "inputs": {"hidden_states": "noisy", **call}}
            return "transformer.0"
        places = "(height // 16) * (width // 16)"
        dtype = self.half or "fp32"
        self._inputs["text_ids"] = {"shape": [self.tokens, 3], "dtype": dtype, "fill": "zeros", "made_on": "gpu"}
        self._inputs["image_ids"] = {"shape": [places, 3], "dtype": dtype, "fill": "zeros", "made_on": "gpu"}
        call |= {"hidden_states": "packed", "txt_ids": "text_ids", "img_ids": "image_ids"}
        if config.get("guidance_embeds"):
            self._inputs["guidance"] = {"shape": [self.batch], "fill": "ones", "made_on": "gpu"}
            call["guidance"] = "guidance"
        for place in (_PACKED, _UNPACKED):
            self.gate.typed(factory_place("", place))  # they are our own
        self._components["packed"] = {"factory": _PACKED, "mode": "frozen", "role": "other", "inputs": ["noisy"]}
        self._components["transformer"] = {**transformer, "inputs": call}
        given = "transformer.0.float()" if self.half else "transformer.0"  # accelerate makes fp32 of what is returned
        self._components["unpacked"] = {
            "factory": _UNPACKED, "mode": "frozen", "role": "other", "no_grad": False, "inputs": [given, "noisy"],
        }  # fmt: skip
        return "unpacked"
