"""timm's own training script on models of its registry, with the defaults it had in version 1.0.9."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import timm
import torch
from timm.data.loader import PrefetchLoader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2

from lab.external.recipes.common import Built, describe
from lab.external.rows import Row

STEPS = 4


class Images:
    """What timm's loader gives before the prefetcher: bytes on the host."""

    def __init__(self, batch: int, size: int) -> None:
        self._images = torch.zeros(batch, 3, size, size, dtype=torch.uint8)
        self._labels = torch.zeros(batch, dtype=torch.int64)
        self.dataset = self.sampler = None

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(STEPS):
            yield self._images, self._labels

    def __len__(self) -> int:
        return STEPS


def run(row: Row) -> Built:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    model: Any = timm.create_model(row.fields["model"], pretrained=False, drop_rate=0.0)
    model.cuda()
    # "sgd" is torch's SGD with Nesterov's momentum; biases and norms are a group without weight decay.
    optimizer = create_optimizer_v2(model, "sgd", lr=0.1, weight_decay=2e-5, momentum=0.9)
    loader = PrefetchLoader(Images(row.integer("batch"), row.integer("image_size")), device=torch.device("cuda"))
    _epoch(model, loader, LabelSmoothingCrossEntropy(0.1).cuda(), optimizer)
    return describe(model)


def _epoch(model: Any, loader: Any, criterion: Any, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    optimizer.zero_grad()
    for images, labels in loader:

        def forward(images: torch.Tensor = images, labels: torch.Tensor = labels) -> torch.Tensor:
            output = model(images)
            loss: torch.Tensor = criterion(output, labels)
            return loss

        loss = forward()
        loss.backward()
        optimizer.step()
        loss.item()
        optimizer.zero_grad()
