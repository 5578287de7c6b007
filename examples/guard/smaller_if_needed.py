"""Settings that give way: the guard lowers the micro-batch, or switches checkpointing on, when memory is short.

python examples/guard/smaller_if_needed.py --batch 65536 --gpu rtx-4090
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import vramcast


def build(batch: int, accumulation: int, checkpointing: bool, device: str = "cuda") -> Callable[[], None]:
    """Everything that training needs; gives the function that makes one step."""
    blocks = nn.ModuleList(
        [nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(8)]
    ).to(device)
    optimizer = torch.optim.AdamW(blocks.parameters())

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(accumulation):
            x = torch.randn(batch, 1024, device=device)
            for block in blocks:
                x = x + (checkpoint(block, x, use_reentrant=False) if checkpointing else block(x))
            (x.square().mean() / accumulation).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--gpu", help="check against this card instead of what is free here")
    args = parser.parse_args()

    guard = vramcast.guard(
        build,
        arguments={"batch": args.batch, "accumulation": 1, "checkpointing": False},
        fallbacks=["micro-batch", "checkpointing"],
        gpu=args.gpu,
    )
    print(f"training with {guard.settings}")
    if torch.cuda.is_available():
        step = build(**guard.settings)
        for _ in range(args.steps):
            step()


if __name__ == "__main__":
    main()
