"""Train an FNO to refine coarse ocean fields; the configuration is a DiffSR one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from fno import FNO2d
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).parent


class Fields(Dataset):
    """Fine fields with their averages over squares as coarse ones; random when there is no file."""

    def __init__(self, data: dict[str, Any], channels: int) -> None:
        self.factor, shape = data["sample_factor"], data["shape"]
        if data["data_path"]:
            fields = torch.from_numpy(np.load(data["data_path"], mmap_mode="r").astype(np.float32)).unsqueeze(1)
            self.fine = fields[..., : shape[0], : shape[1]]
        else:
            self.fine = torch.randn(8 * data["train_batchsize"], channels, *shape)

    def __len__(self) -> int:
        return len(self.fine)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return F.avg_pool2d(self.fine[index], self.factor), self.fine[index]


def relative_l2(predicted: Tensor, target: Tensor) -> Tensor:
    error = (predicted.float() - target).flatten(1).norm(dim=1)
    return (error / target.flatten(1).norm(dim=1)).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=HERE / "fno_ocean.yaml")
    parser.add_argument("--batch", type=int, help="instead of the configuration's train_batchsize")
    parser.add_argument("--size", type=int, help="points along a side, instead of the configuration's shape")
    parser.add_argument("--hidden-dim", type=int, help="channels, instead of the configuration's layers")
    parser.add_argument("--one-by-one", action="store_true", help="AdamW takes one weight at a time: slower, smaller")
    args = parser.parse_args()

    config = yaml.safe_load(args.config.read_text())
    model_config, data, train = config["model"], config["data"], config["train"]
    data["train_batchsize"] = args.batch or data["train_batchsize"]
    data["shape"] = [args.size, args.size] if args.size else data["shape"]
    if args.hidden_dim:
        model_config["layers"] = [args.hidden_dim] * len(model_config["layers"])

    torch.manual_seed(train["random_seed"])
    model = FNO2d(**{name: value for name, value in model_config.items() if name != "name"}).cuda()
    optimize, schedule = config["optimize"], config["schedule"]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=optimize["lr"], weight_decay=optimize["weight_decay"], foreach=not args.one_by_one
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, schedule["step_size"], schedule["gamma"])
    scaler = torch.amp.GradScaler("cuda", enabled=train["use_amp"])
    loader = DataLoader(Fields(data, model_config["in_dim"]), data["train_batchsize"], shuffle=True, drop_last=True)
    share = train["accumulation_steps"]

    for epoch in range(train["epochs"]):
        for i, (coarse, fine) in enumerate(loader, start=1):
            coarse, fine = coarse.cuda(), fine.cuda()
            with torch.autocast("cuda", dtype=torch.float16, enabled=train["use_amp"]):
                loss = relative_l2(model(coarse), fine) / share
            scaler.scale(loss).backward()
            if i % share == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        scheduler.step()
        print(f"epoch {epoch}: loss {share * loss.item():.4f}")


if __name__ == "__main__":
    main()
