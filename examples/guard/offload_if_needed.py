"""Two networks, one frozen: it is moved to the CPU by itself when both do not fit.

python examples/guard/offload_if_needed.py --gpu 8GiB
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn

import vramcast


def build(batch: int, offload: bool, device: str = "cuda") -> Callable[[], None]:
    """`offload`: the frozen encoder runs on the CPU and takes nothing of the card."""
    encoder_device = "cpu" if offload else device
    encoder = nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(28)]).requires_grad_(False).to(encoder_device)
    head = nn.Sequential(nn.Linear(8192, 1024), nn.GELU(), nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.AdamW(head.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with torch.no_grad():
            features = encoder(torch.randn(batch, 8192, device=encoder_device)).to(device)
        head(features).square().mean().backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--gpu", help="check against this card instead of what is free here")
    args = parser.parse_args()

    guard = vramcast.guard(
        build, arguments={"batch": args.batch, "offload": False}, fallbacks=["offload"], gpu=args.gpu
    )
    print(f"training with {guard.settings}")
    if torch.cuda.is_available():
        step = build(**guard.settings)
        for _ in range(args.steps):
            step()


if __name__ == "__main__":
    main()
