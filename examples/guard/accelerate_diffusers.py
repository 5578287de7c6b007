"""accelerate, in the manner of diffusers' training scripts: the step is a function, guarded after prepare().

python examples/guard/accelerate_diffusers.py --gpu rtx-4090
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel

import vramcast


def make_unet() -> UNet2DModel:
    return UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 32),
        norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--gpu", help="check against this card instead of what is free here")
    args = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=2)
    unet = make_unet()
    optimizer = torch.optim.AdamW(unet.parameters())
    noise_scheduler = DDPMScheduler()
    unet, optimizer = accelerator.prepare(unet, optimizer)

    def training_step(unet: Any, optimizer: Any, images: torch.Tensor) -> torch.Tensor:
        with accelerator.accumulate(unet):
            noise = torch.randn_like(images)
            timesteps = torch.randint(0, 1000, (images.shape[0],), device=images.device)
            noisy = noise_scheduler.add_noise(images, noise, timesteps)
            loss = torch.nn.functional.mse_loss(unet(noisy, timesteps).sample, noise)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    images = torch.randn(args.batch, 3, 16, 16, device=accelerator.device)
    with vramcast.guard(training_step, unet, optimizer, images, gpu=args.gpu, steps=4) as guard:
        for _ in range(2 * args.steps):
            training_step(unet, optimizer, images)
    print(f"{guard.watch.steps} optimizer steps")


if __name__ == "__main__":
    main()
