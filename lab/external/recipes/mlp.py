"""GPUMemNet's random multi-layer perceptrons."""

from __future__ import annotations

import torch
from torch import nn

from lab.external.recipes.common import ACTIVATIONS, Built, batches_of_two_epochs, classify, describe
from lab.external.rows import Row

SAMPLES = 4096


def widths(architecture: str, inputs: int, outputs: int, hidden: int) -> list[int]:
    """Output width of each hidden layer."""
    layers, width = [], inputs
    for _ in range(hidden + (architecture == "bottleneck")):
        if architecture in ("pyramid", "bottleneck"):
            width = max(width // 2, outputs)
        elif architecture == "gradual":
            width = max(width - (inputs - outputs) // hidden, outputs)
        layers.append(width)
    return layers


def build(row: Row) -> nn.Sequential:
    inputs, outputs = row.integer("input_size"), row.integer("output_size")
    layers: list[nn.Module] = []
    previous = inputs
    for width in widths(row.fields["architecture"], inputs, outputs, row.integer("hidden_layers")):
        layers.append(nn.Linear(previous, width))
        if row.integer("use_batchnorm"):
            layers.append(nn.BatchNorm1d(width))
        layers.append(ACTIVATIONS[row.fields["activation"]]())
        if row.integer("use_dropout"):
            layers.append(nn.Dropout(float(row.fields["dropout_rate"])))
        previous = width
    return nn.Sequential(*layers, nn.Linear(previous, outputs), nn.Softmax(dim=1))


def run(row: Row) -> Built:
    model = build(row).to("cuda")
    inputs = row.integer("input_size")
    batches = batches_of_two_epochs(SAMPLES, row.integer("batch"))
    if row.integer("use_batchnorm") and 1 in batches:
        batches = batches[: batches.index(1)]  # batch norm refuses a single sample: the run ended there
    model(torch.rand(2, inputs).to("cuda"))  # the source prints a summary first, from a forward of two samples
    classify(
        model,
        lambda size: torch.zeros(size, inputs),
        row.integer("output_size"),
        batches,
    )
    return describe(model)
