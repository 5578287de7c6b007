"""A training loop of one's own: one line in front of it.

python examples/guard/plain_loop.py --batch 4096            # on the GPU here
python examples/guard/plain_loop.py --gpu rtx-4090          # no GPU: only the check, for a card by name
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import vramcast


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--gpu", help="check against this card instead of what is free here")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(64, args.width), nn.GELU(), nn.Linear(args.width, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(args.batch, 64, device=device)
    y = torch.randint(0, 10, (args.batch,), device=device)

    # Copies of what is handed over are trained on a virtual card; the real model is not touched.
    with vramcast.guard(training_step, model, optimizer, x, y, gpu=args.gpu) as guard:
        for _ in range(args.steps):
            training_step(model, optimizer, x, y)
    print(f"{guard.watch.steps} steps, at most {guard.watch.peak_reserved_bytes / 2**20:.0f} MiB reserved")


if __name__ == "__main__":
    main()
