"""Image classifiers from torchvision and timm, in both memory layouts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.workloads.common import Batch, Step, make_optimizer, train


def _images(batch: int, size: int, classes: int) -> Batch:
    return {"images": torch.randn(batch, 3, size, size), "labels": torch.randint(0, classes, (batch,))}


def _cross_entropy(model: nn.Module, batch: Batch) -> Any:
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def _cross_entropy_and_outputs(model: nn.Module, batch: Batch) -> Any:
    logits = model(batch["images"])
    return F.cross_entropy(logits, batch["labels"], label_smoothing=0.1), logits


def _cross_entropy_channels_last(model: nn.Module, batch: Batch) -> Any:
    images = batch["images"].contiguous(memory_format=torch.channels_last)
    return F.cross_entropy(model(images), batch["labels"])


def _train(
    model: nn.Module, batch: int, size: int, optimizer: str, *, layout: str = "contiguous", style: str = "function",
    classes: int = 1000, **rest: Any,
) -> Step:  # fmt: skip
    model = model.to("cuda")
    model.train()
    forward = _cross_entropy_and_outputs if style == "loop" else _cross_entropy
    if layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        forward = _cross_entropy_channels_last
    chosen = make_optimizer(optimizer, model.parameters())
    return train(model, _images(batch, size, classes), forward, chosen, style=style, **rest)


def torchvision_model(
    *, name: str = "resnet50", batch: int = 96, size: int = 224, precision: str = "fp32", layout: str = "contiguous",
    optimizer: str = "sgd-momentum", style: str = "function", tf32: bool = False, clip: float | None = None,
    benchmark: bool = False, accumulate: int = 1,
) -> Step:  # fmt: skip
    """Any torchvision classifier by name."""
    import torchvision

    if tf32:
        torch.backends.cuda.matmul.allow_tf32 = True
    if benchmark:
        torch.backends.cudnn.benchmark = True
    model = torchvision.models.get_model(name, weights=None)
    return _train(
        model, batch, size, optimizer, layout=layout, style=style, precision=precision, clip=clip,
        accumulate=accumulate,
    )  # fmt: skip


def timm_model(
    *, name: str = "vit_large_patch16_224", batch: int = 48, size: int = 224, precision: str = "bf16",
    layout: str = "contiguous", optimizer: str = "adamw", style: str = "function", drop_path: float = 0.0,
    checkpointing: bool = False, classes: int = 1000, clip: float | None = None,
) -> Step:  # fmt: skip
    """Any timm classifier by name; img_size is given only to models that need it."""
    import timm

    extra: dict[str, Any] = {"drop_path_rate": drop_path} if drop_path else {}
    if size != 224 and name.startswith(("vit", "deit", "swin", "beit")):
        extra["img_size"] = size
    model = timm.create_model(name, pretrained=False, num_classes=classes, **extra)
    if checkpointing:
        model.set_grad_checkpointing()
    return _train(
        model, batch, size, optimizer, layout=layout, style=style, precision=precision, classes=classes, clip=clip
    )


def transformers_vit(
    *, batch: int = 40, size: int = 224, precision: str = "bf16", optimizer: str = "adamw", layers: int = 24,
    width: int = 1024, heads: int = 16, style: str = "loop",
) -> Step:  # fmt: skip
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
        image_size=size, num_labels=1000,
    )  # fmt: skip
    model = ViTForImageClassification(config).cuda()
    model.train()

    def forward(model: nn.Module, batch: Batch) -> Any:
        outputs = model(pixel_values=batch["images"], labels=batch["labels"])
        return outputs.loss, outputs

    return train(
        model, _images(batch, size, 1000), forward, make_optimizer(optimizer, model.parameters()),
        precision=precision, style=style,
    )  # fmt: skip


def frozen_half_backbone(
    *, name: str = "vit_base_patch16_224", batch: int = 120, size: int = 224, optimizer: str = "adamw"
) -> Step:
    """A frozen fp16 backbone under no_grad, and an fp32 head that is trained."""
    import timm

    backbone = timm.create_model(name, pretrained=False, num_classes=0).half().to("cuda").eval()
    backbone.requires_grad_(False)
    head = nn.Sequential(nn.Linear(backbone.num_features, 4096), nn.GELU(), nn.Linear(4096, 1000)).to("cuda")

    def forward(head: nn.Module, batch: Batch) -> Any:
        with torch.no_grad():
            features = backbone(batch["images"].half())
        return F.cross_entropy(head(features.float()), batch["labels"])

    return train(head, _images(batch, size, 1000), forward, make_optimizer(optimizer, head.parameters()))


def distillation(
    *, student: str = "resnet18", teacher: str = "resnet152", batch: int = 100, size: int = 208,
    precision: str = "fp16", optimizer: str = "sgd-momentum", temperature: float = 4.0,
) -> Step:  # fmt: skip
    """A student learns from a frozen teacher that runs under no_grad in the same autocast region."""
    import torchvision

    teacher_model = torchvision.models.get_model(teacher, weights=None).to("cuda").eval().requires_grad_(False)
    student_model = torchvision.models.get_model(student, weights=None).to("cuda").train()

    def forward(model: nn.Module, batch: Batch) -> Any:
        with torch.no_grad():
            target = teacher_model(batch["images"])
        logits = model(batch["images"])
        soft = F.kl_div(
            F.log_softmax(logits / temperature, dim=1), F.softmax(target / temperature, dim=1), reduction="batchmean"
        )
        return F.cross_entropy(logits, batch["labels"]) + soft * temperature**2

    return train(
        student_model, _images(batch, size, 1000), forward, make_optimizer(optimizer, student_model.parameters()),
        precision=precision,
    )  # fmt: skip


def ema_training(
    *, name: str = "convnext_tiny", batch: int = 72, size: int = 224, precision: str = "bf16",
    optimizer: str = "adamw", decay: float = 0.999,
) -> Step:  # fmt: skip
    """Weights averaged after every step with torch's AveragedModel."""
    import torchvision
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = torchvision.models.get_model(name, weights=None).cuda().train()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    return train(
        model, _images(batch, size, 1000), _cross_entropy, make_optimizer(optimizer, model.parameters()),
        precision=precision, after_step=lambda: average.update_parameters(model), clip=1.0,
    )  # fmt: skip
