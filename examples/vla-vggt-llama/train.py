"""Train a robot policy of VGGT-1B, LLaMA-2-7B and a fusion head under bf16 autocast."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from policy import SCENARIOS, Policy
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).parent


class Episodes(Dataset):
    """Steps of a .pt file {"images", "words", "actions"}, or random ones."""

    def __init__(self, file: Path | None, data: dict[str, Any], actions: int) -> None:
        self.steps = torch.load(file, mmap=True) if file else None
        self.length = len(self.steps["actions"]) if self.steps else 8 * data["batch_size"]
        self.image_shape = (data["views"], 3, data["image_size"], data["image_size"])
        self.words, self.actions = data["words"], actions

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        if self.steps:
            return self.steps["images"][index], self.steps["words"][index], self.steps["actions"][index]
        return torch.rand(self.image_shape), torch.randint(0, 32000, (self.words,)), torch.randn(self.actions)


def trained_parts(model: dict[str, Any]) -> str:
    """The scenario that the configuration's freeze settings mean."""
    choice = {(True, True): "head", (True, False): "llm", (False, False): "all"}
    frozen = model["freeze_vggt"], model["freeze_lang_encoder"]
    if frozen not in choice:
        raise SystemExit("freeze_vggt must be true while freeze_lang_encoder is")
    return choice[frozen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=HERE / "policy.yaml")
    parser.add_argument("--language-model", type=Path, default=HERE / "Llama-2-7b", help="folder with a config.json")
    parser.add_argument("--data", type=Path, help="a .pt file of episodes; random ones when left out")
    parser.add_argument("--train", choices=SCENARIOS, help="instead of the configuration's freeze settings")
    parser.add_argument("--batch", type=int, help="instead of the configuration's batch_size")
    parser.add_argument("--fused", action="store_true", help="AdamW's fused kernel: no copies of the weights in it")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    config = yaml.safe_load(args.config.read_text())
    model, data, training = config["model"], config["data"], config["training"]
    data["batch_size"] = args.batch or data["batch_size"]
    scenario = args.train or trained_parts(model)
    policy = Policy(
        args.language_model,
        image_size=data["image_size"],
        width=model["fusion_width"],
        layers=model["fusion_layers"],
        actions=model["actions"],
        train=scenario,
    ).cuda()
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=training["learning_rate"], fused=args.fused or None)
    loader = DataLoader(Episodes(args.data, data, model["actions"]), data["batch_size"], drop_last=True)
    share = training["gradient_accumulation_steps"]

    for epoch in range(args.epochs):
        for i, (images, words, actions) in enumerate(loader, start=1):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                answer = policy(images.cuda(), words.cuda())
                loss = F.mse_loss(answer, actions.cuda()) / share
            loss.backward()
            if i % share == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {share * loss.item():.4f}")


if __name__ == "__main__":
    main()
