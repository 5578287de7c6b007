"""Usual inputs of transformers models, by what they read (text, images, sound) and by their head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.jobs.building.built import Built
from vramcast.jobs.building.usual_inputs import image_text_models
from vramcast.jobs.building.usual_inputs.usual import Config, Usual, by_name, floats, integers, ones, pair
from vramcast.jobs.schema import Input, Loss
from vramcast.jobs.text_length import longest_text

_SECONDS_OF_SOUND = 10
_OWN_LOSS = (Loss(kind="model"),)

_TEXT_LABELS: tuple[tuple[tuple[str, ...], Callable[[Config], dict[str, Input]]], ...] = (
    (
        ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining"),
        lambda c: {"labels": integers("batch", "sequence", below=vocabulary(c))},
    ),
    (("ForSequenceClassification",), lambda c: {"labels": integers("batch", below=classes(c))}),
    (("ForTokenClassification",), lambda c: {"labels": integers("batch", "sequence", below=classes(c))}),
    (
        ("ForQuestionAnswering",),
        lambda c: {name: integers("batch", below=2) for name in ("start_positions", "end_positions")},
    ),
    (
        ("ForConditionalGeneration", "ForSeq2SeqLM", "MTModel"),
        lambda c: {"labels": integers("batch", "target_sequence", below=vocabulary(c))},
    ),
)


def usual(class_name: str, built: Built) -> Usual | None:
    config, main = built.config, getattr(built.model, "main_input_name", "input_ids")
    if {"text_config", "vision_config"} <= set(config):
        return _image_and_text(class_name, config)
    if main == "input_features":
        return _spectrogram(class_name, config)
    if main == "input_values":
        return _waveform(class_name, config)
    if main == "pixel_values":
        return _images(class_name, config)
    return _text(class_name, config) if main == "input_ids" else None


def vocabulary(config: Config) -> int:
    return int(config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size") or 2)


def classes(config: Config) -> int:
    return len(config.get("id2label") or {}) or int(config.get("num_labels") or 2)


def _text(class_name: str, config: Config) -> Usual:
    inputs = {
        "input_ids": integers("batch", "sequence", below=vocabulary(config)),
        "attention_mask": ones("batch", "sequence"),
    }
    sizes = {"sequence": longest_text(config)}
    if config.get("is_encoder_decoder"):
        sizes["target_sequence"] = sizes["sequence"]
    labels = _labels(class_name, config)
    if not labels and config.get("is_encoder_decoder") and not class_name.endswith("EncoderModel"):
        inputs["decoder_input_ids"] = integers("batch", "target_sequence", below=vocabulary(config))
    return _with_labels(inputs, labels, sizes)


def _labels(class_name: str, config: Config) -> dict[str, Input]:
    return next((make(config) for ends, make in _TEXT_LABELS if class_name.endswith(ends)), {})


def _with_labels(inputs: dict[str, Input], labels: dict[str, Input], sizes: dict[str, int], **more: Any) -> Usual:
    inputs = inputs | labels
    loss = _OWN_LOSS if labels else (Loss(kind="mean"),)
    return Usual(inputs=inputs, call=by_name(inputs), sizes=sizes, loss=loss, **more)


def _images(class_name: str, config: Config) -> Usual:
    height, width = pair(config.get("image_size"), 224)
    sizes = {"height": height, "width": width}
    channels = int(config.get("num_channels") or 3)
    shape: tuple[Any, ...] = ("batch", channels, "height", "width")
    if "num_frames" in config:
        shape = ("batch", "frames", channels, "height", "width")
        sizes["frames"] = int(config["num_frames"])
    labels = {}
    if class_name.endswith(("ForImageClassification", "ForVideoClassification")):
        labels = {"labels": integers("batch", below=classes(config))}
    elif class_name.endswith("ForSemanticSegmentation"):
        labels = {"labels": integers("batch", "height", "width", below=classes(config))}
    usual = _with_labels({"pixel_values": floats(*shape)}, labels, sizes)
    if class_name.endswith(("MAEForPreTraining", "ForMaskedImageModeling")):
        return Usual(inputs=usual.inputs, call=usual.call, sizes=sizes, loss=_OWN_LOSS)
    return usual


def _spectrogram(class_name: str, config: Config) -> Usual:
    """Whisper and its kin: a log-mel spectrogram in, text out."""
    frames = 2 * int(config.get("max_source_positions") or 1500)
    inputs = {"input_features": floats("batch", int(config.get("num_mel_bins") or 80), frames)}
    sizes = {"sequence": int(config.get("max_target_positions") or 448)}
    if class_name.endswith("ForConditionalGeneration"):
        labels = {"labels": integers("batch", "sequence", below=vocabulary(config))}
    else:
        labels = {}
        if config.get("is_encoder_decoder"):
            inputs["decoder_input_ids"] = integers("batch", "sequence", below=vocabulary(config))
    if class_name.endswith("ForAudioClassification"):
        labels = {"labels": integers("batch", below=classes(config))}
    return _with_labels(inputs, labels, sizes)


def _waveform(class_name: str, config: Config) -> Usual:
    sizes = {"samples": 16_000 * _SECONDS_OF_SOUND, "target_sequence": 50}
    labels = {}
    if class_name.endswith("ForCTC"):
        labels = {"labels": integers("batch", "target_sequence", below=vocabulary(config), at_least=1)}
    elif class_name.endswith("Classification"):
        labels = {"labels": integers("batch", below=classes(config))}
    return _with_labels({"input_values": floats("batch", "samples")}, labels, sizes)


def _image_and_text(class_name: str, config: Config) -> Usual | None:
    """CLIP and its kin, which compare, or models that write about an image."""
    if class_name.endswith("ForConditionalGeneration"):
        return image_text_models.usual(config)
    if "projection_dim" not in config and not class_name.lower().startswith(("clip", "siglip", "align")):
        return None
    text, vision = config["text_config"], config["vision_config"]
    height, width = pair(vision.get("image_size"), 224)
    inputs = {
        "input_ids": integers("batch", "sequence", below=vocabulary(text)),
        "pixel_values": floats("batch", int(vision.get("num_channels") or 3), "height", "width"),
    }
    sizes = {"sequence": longest_text(text), "height": height, "width": width}
    return Usual(inputs=inputs, call=by_name(inputs), sizes=sizes, loss=_OWN_LOSS, options={"return_loss": True})
