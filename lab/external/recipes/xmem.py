"""xMem's runs: torchvision networks on small images, and language models on lines of text."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

from lab.external.recipes.common import Built, describe
from lab.external.recipes.xmem_language import build as build_language_model
from lab.external.rows import Row

STEPS = 4
IMAGE = (3, 86, 86)
TOKENS = 128
AFTER_FORWARD, START, END = "after_forward", "start_of_step", "end_of_step"

VISION: dict[str, Callable[[], nn.Module]] = {
    "VGG11": torchvision.models.vgg11,
    "VGG16": torchvision.models.vgg16,
    "VGG19": torchvision.models.vgg19,
    "ResNet50": torchvision.models.resnet50,
    "ResNet101": torchvision.models.resnet101,
    "ResNet152": torchvision.models.resnet152,
    "MobileNetV2": torchvision.models.mobilenet_v2,
    "MobeNetV3Small": lambda: torchvision.models.mobilenet_v3_small(num_classes=10),
    "MobeNetV3Large": lambda: torchvision.models.mobilenet_v3_large(num_classes=10),
    "MnasNet": lambda: torchvision.models.MNASNet(alpha=1.0, num_classes=10),
    "ConvNeXtTiny": torchvision.models.convnext_tiny,
    "ConvNeXtBase": torchvision.models.convnext_base,
    "RegNetX400MF": torchvision.models.regnet_x_400mf,
    "RegNetX32GF": torchvision.models.regnet_x_32gf,
    "RegNetY400MF": torchvision.models.regnet_y_400mf,
    "RegNetY32GF": torchvision.models.regnet_y_32gf,
}


def is_vision(row: Row) -> bool:
    return row.fields["model"] in VISION


def run(row: Row) -> Built:
    return run_vision(row) if is_vision(row) else run_language(row)


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "Adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(model.parameters(), lr=1e-3, relative_step=False)
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3)
    return optimizer


def zero_grad_position(row: Row) -> str:
    """Where no position is recorded, the start of the step: any other needs more than was measured in small batches."""
    position = row.fields["zero_grad_position"]
    return START if position == "unrecorded" else position


def run_vision(row: Row) -> Built:
    batch, position = row.integer("batch"), zero_grad_position(row)
    model = VISION[row.fields["model"]]()
    model.to("cuda")
    model.train()
    optimizer = make_optimizer(row.fields["optimizer"], model)
    criterion = nn.CrossEntropyLoss()
    for _ in range(STEPS):
        images, labels = torch.zeros(batch, *IMAGE), torch.zeros(batch, dtype=torch.int64)
        if position == START:
            optimizer.zero_grad()
        images, labels = images.to("cuda"), labels.to("cuda")
        outputs = model(images)
        loss = criterion(outputs, labels)
        if position == AFTER_FORWARD:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if position == END:
            optimizer.zero_grad()
        best = torch.max(outputs, 1)[1]
    del best
    return describe(model)


def run_language(row: Row) -> Built:
    batch, position = row.integer("batch"), zero_grad_position(row)
    model: Any = build_language_model(row.fields["model"])
    model.to("cuda")
    model.train()
    optimizer = make_optimizer(row.fields["optimizer"], model)
    generator = random.Random(0)
    for _ in range(STEPS):
        inputs: dict[str, torch.Tensor] = lines_of_text(batch, generator)
        if position == START:
            optimizer.zero_grad()
        inputs = {name: tensor.to("cuda") for name, tensor in inputs.items()}
        outputs = model(**inputs)
        loss = outputs.loss
        if position == AFTER_FORWARD:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if position == END:
            optimizer.zero_grad()
    return describe(model)


def lines_of_text(batch: int, generator: random.Random) -> dict[str, torch.Tensor]:
    """Lines of many lengths, padded to the longest; one of them is truncated, so that is the limit."""
    mask = torch.zeros(batch, TOKENS, dtype=torch.int64)
    for i in range(batch):
        mask[i, : TOKENS if i == 0 else generator.randint(4, TOKENS)] = 1
    tokens = torch.randint(10, 1000, (batch, TOKENS))
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}
