"""Usual inputs of diffusers models: latents with noise, timesteps, and text as embeddings.

`height`, `width` and `frames` are those of the images or videos; a latent is smaller by what the autoencoder of the
family makes of it.
"""

from __future__ import annotations

from collections.abc import Callable

from vramcast.jobs.building.built import Built
from vramcast.jobs.building.usual_inputs.usual import Config, Usual, floats, integers, pair
from vramcast.jobs.schema import Diffusion, Loss

_VAE = 8
"""Pixels to one latent in each direction, in Stable Diffusion's autoencoders and most since."""

_AGAINST_OBJECTIVE = (Loss(kind="mse", target="objective", upcast=True),)
_NO_DICT = {"return_dict": False}
_NOISE = Diffusion(clean="latents", schedule="noise")
_FLOW = Diffusion(clean="latents", schedule="flow")


def usual(class_name: str, built: Built) -> Usual | None:
    make = _MODELS.get(class_name)
    return make(built.config) if make is not None else None


def _unet_2d(config: Config) -> Usual:
    """Unconditional: it works on images themselves."""
    height, width = pair(config.get("sample_size"), 64)
    inputs = {"images": floats("batch", int(config["in_channels"]), "height", "width")}
    call = {"sample": "noisy", "timestep": "timesteps"}
    if config.get("class_embed_type") or config.get("num_class_embeds"):
        inputs["class_labels"] = integers("batch", below=int(config.get("num_class_embeds") or 1000))
        call["class_labels"] = "class_labels"
    return Usual(
        inputs=inputs, call=call, sizes={"height": height, "width": width}, loss=_AGAINST_OBJECTIVE,
        diffusion=Diffusion(clean="images"), options=_NO_DICT,
    )  # fmt: skip


def _unet_2d_condition(config: Config) -> Usual:
    height, width = pair(config.get("sample_size"), 64)
    cross = config["cross_attention_dim"]
    inputs = {
        "latents": floats("batch", int(config["in_channels"]), f"height // {_VAE}", f"width // {_VAE}"),
        "text": floats("batch", "sequence", int(max(cross) if isinstance(cross, (list, tuple)) else cross)),
    }
    call = {"sample": "noisy", "timestep": "timesteps", "encoder_hidden_states": "text"}
    if config.get("addition_embed_type") == "text_time":
        ids = 6
        width_of_ids = ids * int(config["addition_time_embed_dim"])
        pooled = int(config["projection_class_embeddings_input_dim"]) - width_of_ids
        inputs |= {"text_embeds": floats("batch", pooled), "time_ids": floats("batch", ids)}
        call |= {"added_cond_kwargs.text_embeds": "text_embeds", "added_cond_kwargs.time_ids": "time_ids"}
    return Usual(
        inputs=inputs, call=call, sizes={"height": height * _VAE, "width": width * _VAE, "sequence": 77},
        loss=_AGAINST_OBJECTIVE, diffusion=_NOISE, options=_NO_DICT,
    )  # fmt: skip


def _flux(config: Config) -> Usual:
    """Latents come as patches of 2 × 2; both streams carry their positions."""
    tokens = f"(height // {2 * _VAE}) * (width // {2 * _VAE})"
    inputs = {
        "latents": floats("batch", tokens, int(config["in_channels"])),
        "text": floats("batch", "sequence", int(config["joint_attention_dim"])),
        "pooled_text": floats("batch", int(config["pooled_projection_dim"])),
        "text_ids": floats("sequence", 3, fill="zeros"),
        "image_ids": floats(tokens, 3, fill="zeros"),
    }
    call = {
        "hidden_states": "noisy", "timestep": "timesteps", "encoder_hidden_states": "text",
        "pooled_projections": "pooled_text", "txt_ids": "text_ids", "img_ids": "image_ids",
    }  # fmt: skip
    if config.get("guidance_embeds"):
        inputs["guidance"] = floats("batch", fill="ones")
        call["guidance"] = "guidance"
    return Usual(
        inputs=inputs, call=call, sizes={"height": 1024, "width": 1024, "sequence": 512},
        loss=_AGAINST_OBJECTIVE, diffusion=_FLOW, options=_NO_DICT,
    )  # fmt: skip


def _sd3(config: Config) -> Usual:
    inputs = {
        "latents": floats("batch", int(config["in_channels"]), f"height // {_VAE}", f"width // {_VAE}"),
        "text": floats("batch", "sequence", int(config["joint_attention_dim"])),
        "pooled_text": floats("batch", int(config["pooled_projection_dim"])),
    }
    call = {
        "hidden_states": "noisy", "timestep": "timesteps", "encoder_hidden_states": "text",
        "pooled_projections": "pooled_text",
    }  # fmt: skip
    height, width = pair(config.get("sample_size"), 128)
    return Usual(
        inputs=inputs, call=call, sizes={"height": height * _VAE, "width": width * _VAE, "sequence": 154},
        loss=_AGAINST_OBJECTIVE, diffusion=_FLOW, options=_NO_DICT,
    )  # fmt: skip


def _dit(config: Config) -> Usual:
    height, width = pair(config.get("sample_size"), 32)
    inputs = {
        "latents": floats("batch", int(config["in_channels"]), f"height // {_VAE}", f"width // {_VAE}"),
        "class_labels": integers("batch", below=int(config.get("num_embeds_ada_norm") or 1000)),
    }
    call = {"hidden_states": "noisy", "timestep": "timesteps", "class_labels": "class_labels"}
    return Usual(
        inputs=inputs, call=call, sizes={"height": height * _VAE, "width": width * _VAE},
        loss=(Loss(kind="mse", target="objective", upcast=True, first_channels=True),), diffusion=_NOISE,
        options=_NO_DICT,
    )  # fmt: skip


def _pixart(config: Config) -> Usual:
    height, width = pair(config.get("sample_size"), 128)
    inputs = {
        "latents": floats("batch", int(config["in_channels"]), f"height // {_VAE}", f"width // {_VAE}"),
        "text": floats("batch", "sequence", int(config["caption_channels"])),
    }
    call = {"hidden_states": "noisy", "timestep": "timesteps", "encoder_hidden_states": "text"}
    options: dict[str, object] = dict(_NO_DICT)
    if config.get("use_additional_conditions") or (config.get("use_additional_conditions") is None and height == 128):
        inputs |= {"resolution": floats("batch", 2), "aspect_ratio": floats("batch", 1)}
        call |= {"added_cond_kwargs.resolution": "resolution", "added_cond_kwargs.aspect_ratio": "aspect_ratio"}
    else:
        options["added_cond_kwargs"] = {"resolution": None, "aspect_ratio": None}
    return Usual(
        inputs=inputs, call=call, sizes={"height": height * _VAE, "width": width * _VAE, "sequence": 120},
        loss=(Loss(kind="mse", target="objective", upcast=True, first_channels=True),), diffusion=_NOISE,
        options=options,
    )  # fmt: skip


def _cogvideox(config: Config) -> Usual:
    frames = int(config.get("temporal_compression_ratio") or 4)
    latent_frames = f"(frames - 1) // {frames} + 1"
    inputs = {
        "latents": floats("batch", latent_frames, int(config["in_channels"]), f"height // {_VAE}", f"width // {_VAE}"),
        "text": floats("batch", "sequence", int(config["text_embed_dim"])),
    }
    call = {"hidden_states": "noisy", "timestep": "timesteps", "encoder_hidden_states": "text"}
    if config.get("use_rotary_positional_embeddings"):
        patch = int(config.get("patch_size") or 2) * _VAE
        depth = int(config.get("patch_size_t") or 1)
        tokens = f"ceil(({latent_frames}) / {depth}) * (height // {patch}) * (width // {patch})"
        for i, name in enumerate(("rotary_cos", "rotary_sin")):
            inputs[name] = floats(tokens, int(config["attention_head_dim"]), made_on="gpu")
            call[f"image_rotary_emb.{i}"] = name
    sizes = {
        "frames": int(config.get("sample_frames") or 49),
        "height": int(config.get("sample_height") or 60) * _VAE,
        "width": int(config.get("sample_width") or 90) * _VAE,
        "sequence": int(config.get("max_text_seq_length") or 226),
    }
    return Usual(
        inputs=inputs, call=call, sizes=sizes, loss=_AGAINST_OBJECTIVE, diffusion=_NOISE, options=_NO_DICT
    )  # fmt: skip


def _wan(config: Config) -> Usual:
    inputs = {
        "latents": floats(
            "batch", int(config["in_channels"]), "(frames - 1) // 4 + 1", f"height // {_VAE}", f"width // {_VAE}"
        ),
        "text": floats("batch", "sequence", int(config["text_dim"])),
    }
    call = {"hidden_states": "noisy", "timestep": "timesteps", "encoder_hidden_states": "text"}
    return Usual(
        inputs=inputs, call=call, sizes={"frames": 81, "height": 480, "width": 832, "sequence": 512},
        loss=_AGAINST_OBJECTIVE, diffusion=_FLOW, options=_NO_DICT,
    )  # fmt: skip


def _autoencoder(config: Config) -> Usual:
    height, width = pair(config.get("sample_size"), 512)
    return Usual(
        inputs={"images": floats("batch", int(config["in_channels"]), "height", "width")},
        call={"sample": "images"}, sizes={"height": height, "width": width},
        loss=(Loss(kind="mse", target="images"),), options=_NO_DICT,
    )  # fmt: skip


_MODELS: dict[str, Callable[[Config], Usual]] = {
    "UNet2DModel": _unet_2d,
    "UNet2DConditionModel": _unet_2d_condition,
    "FluxTransformer2DModel": _flux,
    "SD3Transformer2DModel": _sd3,
    "DiTTransformer2DModel": _dit,
    "PixArtTransformer2DModel": _pixart,
    "CogVideoXTransformer3DModel": _cogvideox,
    "WanTransformer3DModel": _wan,
    "AutoencoderKL": _autoencoder,
}
