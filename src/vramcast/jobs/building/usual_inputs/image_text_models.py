"""Usual inputs of models that write about an image: text in which places are kept for what the image is turned into."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.jobs.building.usual_inputs.usual import Config, Usual, by_name, floats, integers, ones, pair
from vramcast.jobs.fields import Expression
from vramcast.jobs.schema import Input, Loss
from vramcast.jobs.text_length import longest_text

_OWN_LOSS = (Loss(kind="model"),)
_TILES, _ASPECT_RATIOS = 4, 8
"""Of Llama 3.2, where its config says neither."""


def usual(config: Config) -> Usual | None:
    """With an image for each text, and labels; None for models whose processor does more than keep places."""
    family = _FAMILIES.get(str(config.get("model_type")))
    return family(config) if family is not None else None


def _with_places(config: Config, places: Expression, **more: Input) -> Usual:
    """The leading tokens of each text stand for its image, as their processors put them; no other token does."""
    text, vision = config["text_config"], config["vision_config"]
    height, width = pair(vision.get("image_size"), 224)
    vocabulary = int(text.get("vocab_size") or 2)
    token = int(config.get("image_token_id", config.get("image_token_index")) or 0)
    others = {"at_least": token + 1} if token < vocabulary // 2 else {}
    below = vocabulary if others else min(token, vocabulary)
    inputs = {
        "input_ids": integers("batch", "sequence", below=below, leading=places, leading_value=token, **others),
        "attention_mask": ones("batch", "sequence"),
        "pixel_values": floats("batch", int(vision.get("num_channels") or 3), "height", "width"),
        **more,
        "labels": integers("batch", "sequence", below=below),
    }
    sizes = {"sequence": longest_text(text), "height": height, "width": width}
    return Usual(inputs=inputs, call=by_name(inputs), sizes=sizes, loss=_OWN_LOSS)


def _llava(config: Config) -> Usual:
    patch = int(config["vision_config"].get("patch_size") or 14)
    places = f"(height // {patch}) * (width // {patch})"
    whole = config.get("vision_feature_select_strategy") == "full"  # with the token of the whole image
    return _with_places(config, f"{places} + 1" if whole else places)


def _pali_gemma(config: Config) -> Usual:
    patch = int(config["vision_config"].get("patch_size") or 14)
    kinds = Input(shape=["batch", "sequence"], dtype="int64", fill="zeros")
    return _with_places(config, f"(height // {patch}) * (width // {patch})", token_type_ids=kinds)


def _gemma3(config: Config) -> Usual:
    places = int(config.get("mm_tokens_per_image") or 256)
    kinds = Input(shape=["batch", "sequence"], dtype="int64", fill="zeros", leading=places, leading_value=1)
    return _with_places(config, places, token_type_ids=kinds)


def _mllama(config: Config) -> Usual:
    """Llama 3.2: an image in tiles, which some layers look at across."""
    text, vision = config["text_config"], config["vision_config"]
    height, width = pair(vision.get("image_size"), 560)
    tiles = int(vision.get("max_num_tiles") or _TILES)
    ratios = len(vision.get("supported_aspect_ratios") or ()) or _ASPECT_RATIOS
    inputs = {
        "input_ids": integers("batch", "sequence", below=int(text.get("vocab_size") or 2)),
        "attention_mask": ones("batch", "sequence"),
        "pixel_values": floats("batch", 1, tiles, int(vision.get("num_channels") or 3), "height", "width"),
        "aspect_ratio_ids": integers("batch", 1, below=ratios + 1, at_least=1),
        "aspect_ratio_mask": ones("batch", 1, tiles),
        "cross_attention_mask": ones("batch", "sequence", 1, tiles),
        "labels": integers("batch", "sequence", below=int(text.get("vocab_size") or 2)),
    }
    sizes = {"sequence": longest_text(text), "height": height, "width": width}
    return Usual(inputs=inputs, call=by_name(inputs), sizes=sizes, loss=_OWN_LOSS)


_FAMILIES: dict[str, Callable[[Config], Usual]] = {
    "llava": _llava,
    "vipllava": _llava,
    "paligemma": _pali_gemma,
    "gemma3": _gemma3,
    "mllama": _mllama,
}
"""By model_type."""
