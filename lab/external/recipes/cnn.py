"""GPUMemNet's random convolutional networks."""

from __future__ import annotations

import torch
from torch import nn

from lab.external.recipes.common import ACTIVATIONS, Built, batches_of_two_epochs, classify, describe
from lab.external.rows import Row

SAMPLES = 4096
MAX_FILTERS = 2048
GROWTH = 32
SMALLEST = 7
"""A residual network stops once its feature maps are this small."""


def conv_block(row: Row, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, plain: bool = False) -> nn.Module:
    """`plain`: a transition's block, which has ReLU and no dropout whatever the row says."""
    layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2)]
    if row.integer("use_batchnorm"):
        layers.append(nn.BatchNorm2d(outputs))
    layers.append(nn.ReLU() if plain else ACTIVATIONS[row.fields["activation"]]())
    if row.integer("use_dropout") and not plain:
        layers.append(nn.Dropout(float(row.fields["dropout_rate"])))
    return nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, row: Row, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = conv_block(row, inputs, outputs, stride=stride)
        self.second = conv_block(row, outputs, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs or stride != 1:
            norm = nn.BatchNorm2d(outputs) if row.integer("use_batchnorm") else nn.Identity()
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = self.shortcut(x)
        x = self.first(x)
        x = self.second(x)
        return x + residual


class Dense(nn.Module):
    def __init__(self, row: Row, inputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv_block(row, inputs + i * GROWTH, GROWTH) for i in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


def widths(architecture: str, base: int, depth: int) -> list[int]:
    """Output channels of each convolution of the chain architectures."""
    ratio = MAX_FILTERS / base
    outputs = []
    for i in range(depth):
        if architecture == "uniform":
            width = base
        elif architecture == "pyramid":
            width = min(int(base * (ratio ** (1 / depth)) ** i), MAX_FILTERS)
        elif architecture == "gradual":
            width = min(int(base * (ratio ** (1 / (2 * depth))) ** i), MAX_FILTERS)
        elif architecture == "bottleneck":
            growth = 2 if depth <= 2 else ratio ** (1 / (depth - 1))
            width = base * 2 if i == 0 else min(int(base * growth ** (i - 1)), MAX_FILTERS)
        elif i < depth // 2:
            width = min(int(base * (ratio ** (1 / (depth // 2))) ** i), MAX_FILTERS)
        else:
            width = max(int(base * (ratio ** (1 / (depth - depth // 2))) ** (depth - i - 1)), base)
        outputs.append(width)
    return outputs


def blocks(row: Row) -> tuple[list[nn.Module], int]:
    """The body, and the channels it ends with."""
    architecture, depth, base = row.fields["architecture"], row.integer("depth"), row.integer("base_filters")
    channels, size = row.integer("in_channels"), row.integer("image_size")
    layers: list[nn.Module] = []
    if architecture == "residual":
        growth = (MAX_FILTERS / base) ** (1 / depth)
        for i in range(depth // 2):
            outputs = min(int(base * growth**i), MAX_FILTERS)
            stride = 2 if i % 2 == 1 and size > SMALLEST else 1
            layers.append(Residual(row, channels, outputs, stride))
            channels, size = outputs, size // stride
            if size <= SMALLEST:
                break
    elif architecture == "dense":
        count = depth // 4
        for i in range(count):
            layers.append(Dense(row, channels))
            channels += 4 * GROWTH
            if i == 0 and count > 1:
                layers.append(conv_block(row, channels, channels // 2, kernel=1, plain=True))
                layers.append(nn.AvgPool2d(2))
                channels //= 2
    else:
        for outputs in widths(architecture, base, depth):
            layers.append(conv_block(row, channels, outputs))
            channels = outputs
    return layers, channels


def run(row: Row) -> Built:
    body, channels = blocks(row)
    classes = row.integer("num_classes")
    model = nn.Sequential(
        *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes), nn.Softmax(dim=1)
    ).to("cuda")
    shape = (row.integer("in_channels"), row.integer("image_size"), row.integer("image_size"))
    model(torch.rand(2, *shape).to("cuda"))  # the source prints a summary first, from a forward of two samples
    batch = row.integer("batch")
    if classes == 1:
        # The source's loss for one class refuses the labels it makes: the run ended after its first forward pass.
        model.train()(torch.zeros(batch, *shape).to("cuda"))
        return describe(model)
    classify(model, lambda size: torch.zeros(size, *shape), classes, batches_of_two_epochs(SAMPLES, batch))
    return describe(model)
