"""What the recipes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "swish": nn.SiLU,
    "softplus": nn.Softplus,
    "mish": nn.Mish,
    "identity": nn.Identity,
}
FULL_STEPS = 3
"""Full batches before the smaller last one of an epoch, and after it: the allocator has settled by then."""


@dataclass(frozen=True)
class Built:
    """What a recipe built, to check it against what the source states."""

    parameters: int
    spatial_convolutions: int
    """Convolutions that look at neighbours; a patch embedding (stride = kernel) does not count."""


def describe(model: nn.Module) -> Built:
    spatial = sum(
        isinstance(m, nn.Conv2d) and max(m.kernel_size) > 1 and m.kernel_size != m.stride for m in model.modules()
    )
    return Built(sum(p.numel() for p in model.parameters()), spatial)


def batches_of_two_epochs(samples: int, batch: int) -> list[int]:
    """Sizes of the batches that matter: some of the first epoch, its smaller last one, some of the second."""
    full, last = divmod(samples, batch)
    if not full:
        return [last] * FULL_STEPS
    steps = [batch] * min(full, FULL_STEPS)
    return steps + ([last] if last else []) + steps


def classify(
    model: nn.Module, make_inputs: Callable[[int], torch.Tensor], classes: int, batches: list[int], lr: float = 1e-3
) -> None:
    """Adam and cross-entropy in a plain loop; outputs and loss live until the next iteration replaces them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for size in batches:
        inputs, labels = make_inputs(size), torch.randint(0, classes, (size,))
        inputs, labels = inputs.to("cuda"), labels.to("cuda")
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        loss.item()
