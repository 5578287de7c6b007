"""Lightning: a callback.

python examples/guard/lightning_callback.py --gpu rtx-4090
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import vramcast


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--gpu", help="check against this card instead of what is free here")
    args = parser.parse_args()

    guard = vramcast.guard.LightningVramcastCallback(gpu=args.gpu)
    trainer = lightning.Trainer(
        max_steps=args.steps, callbacks=[guard], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    data = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
    trainer.fit(Classifier(), DataLoader(data, batch_size=32))
    print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()
