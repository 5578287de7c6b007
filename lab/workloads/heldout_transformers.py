"""Held-out workloads: transformers' models built from a configuration, chosen by class name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _build(name: str, settings: dict[str, Any] | None, weights: str, attention: str | None) -> Any:
    """The model on the device, initialised there: the CPU would take seconds for the larger ones."""
    import transformers

    model_class = getattr(transformers, name)
    config = model_class.config_class(**(settings or {}))
    if attention is not None:
        config._attn_implementation = attention
    with torch.device("cuda"):
        model = model_class(config)
    return model.to("cuda", DTYPES[weights]).train()


def _loss(model: nn.Module, batch: Batch) -> Any:
    outputs = model(**batch)
    return outputs.loss, outputs


def _loss_alone(model: nn.Module, batch: Batch) -> Any:
    return model(**batch).loss


def _finish(model: nn.Module, data: Batch, optimizer: str, style: str, **rest: Any) -> Step:
    chosen = make_optimizer(optimizer, [p for p in model.parameters() if p.requires_grad])
    return train(model, data, _loss if style == "loop" else _loss_alone, chosen, style=style, **rest)


def text_model(
    *, model: str = "PhiForCausalLM", settings: dict[str, Any] | None = None, batch: int = 4, length: int = 512,
    target: int = 0, padded: bool = False, precision: str = "bf16", weights: str = "fp32",
    attention: str | None = None, optimizer: str = "adamw", style: str = "function", clip: float | None = None,
    accumulate: int = 1, checkpointing: bool = False,
) -> Step:  # fmt: skip
    """Text in, the model's own loss out: causal or masked with `target` 0, else an encoder with a decoder."""
    network = _build(model, settings, weights, attention)
    if checkpointing:
        network.gradient_checkpointing_enable()
    vocabulary = network.config.vocab_size
    ids = torch.randint(5, vocabulary, (batch, length))
    data = {"input_ids": ids, "labels": torch.randint(5, vocabulary, (batch, target)) if target else ids}
    if model.endswith("ForPreTraining"):
        data["labels"] = torch.randint(0, 2, (batch, length))
    if padded:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[:, length - length // 8 :] = 0
        data["attention_mask"] = mask
    return _finish(network, data, optimizer, style, precision=precision, clip=clip, accumulate=accumulate)


def vision_model(
    *, model: str = "Dinov2ForImageClassification", settings: dict[str, Any] | None = None, batch: int = 16,
    size: int = 224, classes: int = 1000, precision: str = "bf16", optimizer: str = "adamw", style: str = "function",
    attention: str | None = None, clip: float | None = None,
) -> Step:  # fmt: skip
    network = _build(model, {"num_labels": classes} | (settings or {}), "fp32", attention)
    data = {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.randint(0, classes, (batch,))}
    return _finish(network, data, optimizer, style, precision=precision, clip=clip)


def dense_vision_model(
    *, model: str = "DPTForDepthEstimation", settings: dict[str, Any] | None = None, batch: int = 8, size: int = 384,
    precision: str = "fp32", optimizer: str = "adam", style: str = "loop",
) -> Step:  # fmt: skip
    """Depth from one image, with the scale-invariant logarithmic loss."""
    network = _build(model, settings, "fp32", None)
    data = {"pixel_values": torch.randn(batch, 3, size, size), "depth": torch.rand(batch, size, size) + 0.1}

    def forward(model: nn.Module, batch: Batch) -> Any:
        depth = model(pixel_values=batch["pixel_values"]).predicted_depth
        depth = F.interpolate(depth.unsqueeze(1), size=(size, size), mode="bicubic", align_corners=False).squeeze(1)
        difference = torch.log(depth.clamp(min=1e-3).float()) - torch.log(batch["depth"])
        return difference.square().mean() - 0.5 * difference.mean().square(), depth

    chosen = make_optimizer(optimizer, network.parameters())
    return train(network, data, forward, chosen, precision=precision, style=style)


def contrastive_pairs(
    *, model: str = "CLIPModel", settings: dict[str, Any] | None = None, batch: int = 64, size: int = 224,
    length: int = 77, precision: str = "fp16", optimizer: str = "adamw", style: str = "function",
    checkpointing: bool = False,
) -> Step:  # fmt: skip
    """Images and captions against each other."""
    network = _build(model, settings, "fp32", None)
    if checkpointing:
        network.gradient_checkpointing_enable()
    ids = torch.randint(5, network.config.text_config.vocab_size, (batch, length))
    data = {"input_ids": ids, "pixel_values": torch.randn(batch, 3, size, size)}

    def forward(model: nn.Module, batch: Batch) -> Any:
        return model(**batch, return_loss=True).loss

    chosen = make_optimizer(optimizer, network.parameters())
    return train(network, data, forward, chosen, precision=precision, style=style, clip=1.0)


def captioning(
    *, model: str = "BlipForConditionalGeneration", settings: dict[str, Any] | None = None, batch: int = 10,
    size: int = 384, length: int = 40, freeze_vision: bool = True, precision: str = "fp32",
    optimizer: str = "adamw-fused", style: str = "loop",
) -> Step:  # fmt: skip
    """A captioner; its image encoder may be frozen, and then keeps nothing for the backward pass."""
    network = _build(model, settings, "fp32", None)
    if freeze_vision:
        network.vision_model.requires_grad_(False)
    ids = torch.randint(5, network.config.text_config.vocab_size, (batch, length))
    data = {"input_ids": ids, "labels": ids, "pixel_values": torch.randn(batch, 3, size, size)}
    return _finish(network, data, optimizer, style, precision=precision)


def waveform_model(
    *, model: str = "HubertForCTC", settings: dict[str, Any] | None = None, batch: int = 6, seconds: float = 7.3,
    precision: str = "bf16", optimizer: str = "adam", style: str = "function", clip: float | None = None,
    checkpointing: bool = False,
) -> Step:  # fmt: skip
    network = _build(model, settings, "fp32", None)
    if checkpointing:
        network.gradient_checkpointing_enable()
    data = {
        "input_values": torch.randn(batch, int(16000 * seconds)),
        "labels": torch.randint(1, network.config.vocab_size, (batch, 48)),
    }
    return _finish(network, data, optimizer, style, precision=precision, clip=clip)


def spectrogram_model(
    *, model: str = "ASTForAudioClassification", settings: dict[str, Any] | None = None, batch: int = 12,
    precision: str = "fp16", optimizer: str = "adamw-loop", style: str = "loop",
) -> Step:  # fmt: skip
    network = _build(model, {"num_labels": 527} | (settings or {}), "fp32", None)
    config = network.config
    data = {
        "input_values": torch.randn(batch, config.max_length, config.num_mel_bins),
        "labels": torch.randint(0, 527, (batch,)),
    }
    return _finish(network, data, optimizer, style, precision=precision)


def time_series(
    *, settings: dict[str, Any] | None = None, batch: int = 64, precision: str = "fp32", optimizer: str = "radam",
    style: str = "function",
) -> Step:  # fmt: skip
    """PatchTST: every channel of the series is a sequence of its own."""
    network = _build("PatchTSTForPrediction", settings, "fp32", None)
    config = network.config
    data = {
        "past_values": torch.randn(batch, config.context_length, config.num_input_channels),
        "future_values": torch.randn(batch, config.prediction_length, config.num_input_channels),
    }
    return _finish(network, data, optimizer, style, precision=precision)


def decision_transformer(
    *, batch: int = 64, length: int = 120, width: int = 768, layers: int = 10, precision: str = "fp32",
    optimizer: str = "lion-own", style: str = "loop",
) -> Step:  # fmt: skip
    """Returns, states and actions as one sequence; the loss is on the actions."""
    settings = {
        "state_dim": 60, "act_dim": 20, "hidden_size": width, "n_layer": layers, "n_head": 12, "n_inner": 4 * width,
        "max_ep_len": 1000,
    }  # fmt: skip
    network = _build("DecisionTransformerModel", settings, "fp32", None)
    data = {
        "states": torch.randn(batch, length, 60), "actions": torch.randn(batch, length, 20),
        "rewards": torch.randn(batch, length, 1), "returns_to_go": torch.randn(batch, length, 1),
        "timesteps": torch.arange(length).expand(batch, length).contiguous(),
        "attention_mask": torch.ones(batch, length, dtype=torch.long),
    }  # fmt: skip

    def forward(model: nn.Module, batch: Batch) -> Any:
        outputs = model(**batch)
        return F.mse_loss(outputs.action_preds, batch["actions"]), outputs

    return train(
        network, data, forward, make_optimizer(optimizer, network.parameters()), precision=precision, style=style
    )
