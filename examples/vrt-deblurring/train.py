"""Train VRT to deblur videos, on one GPU or as one rank's share of several; the options are a KAIR option file."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from data import GoPro, RandomClips
from torch import Tensor, nn
from torch.utils.data import DataLoader
from vrt import VRT

HERE = Path(__file__).parent
NETWORK_OPTIONS = (
    "window_size", "depths", "embed_dims", "num_heads", "indep_reconsts", "deformable_groups", "use_checkpoint_attn",
    "use_checkpoint_ffn", "no_checkpoint_attn_blocks", "no_checkpoint_ffn_blocks",
)  # fmt: skip


def read_options(path: Path) -> dict[str, Any]:
    """JSON with `//` comments; a `//` inside a string is part of it."""
    text = re.sub(r'("(?:\\.|[^"\\])*")|//[^\n]*', lambda match: match[1] or "", path.read_text())
    return json.loads(text)


def charbonnier(restored: Tensor, sharp: Tensor, eps: float) -> Tensor:
    difference = restored - sharp
    return torch.mean(torch.sqrt(difference * difference + eps))


def build_network(options: dict[str, Any]) -> VRT:
    net = options["netG"]
    if net["upscale"] != 1 or net["pa_frames"] != 2 or net["nonblind_denoising"]:
        raise SystemExit("this VRT restores at the input's resolution (upscale 1), with pa_frames 2, blindly")
    return VRT(**{name: net[name] for name in NETWORK_OPTIONS})


def build_optimizer(network: nn.Module, train: dict[str, Any]) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
    """Adam, with a smaller rate for what is frozen at first; and those parameters."""
    late = [p for name, p in network.named_parameters() if any(key in name for key in train["fix_keys"])]
    late_ids = {id(p) for p in late}
    early = [p for p in network.parameters() if id(p) not in late_ids]
    rate = train["G_optimizer_lr"]
    groups = [{"params": early}, {"params": late, "lr": rate * train["fix_lr_mul"]}]
    betas, decay = tuple(train["G_optimizer_betas"]), train["G_optimizer_wd"]
    return torch.optim.Adam(groups, lr=rate, betas=betas, weight_decay=decay), late


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--options", type=Path, default=HERE / "gopro.json")
    parser.add_argument("--data", type=Path, help="folder in GoPro's layout; random clips when left out")
    parser.add_argument("--crop", type=int, help="instead of the options' gt_size")
    parser.add_argument("--batch", type=int, help="clips on this GPU, instead of the options' share")
    parser.add_argument("--steps", type=int, help="instead of the options' total_iter")
    parser.add_argument("--start", type=int, default=0, help="first iteration; from fix_iter on everything is trained")
    args = parser.parse_args()

    options = read_options(args.options)
    clips, train = options["datasets"]["train"], options["train"]
    batch = args.batch or clips["dataloader_batch_size"] // (len(options["gpu_ids"]) if options["dist"] else 1)
    crop = args.crop or clips["gt_size"]
    steps = args.steps or train["total_iter"]

    network = build_network(options).cuda().train()
    optimizer, late = build_optimizer(network, train)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        optimizer, train["G_scheduler_periods"], eta_min=train["G_scheduler_eta_min"]
    )
    for p in late:
        p.requires_grad_(args.start >= train["fix_iter"])

    if args.data:
        data = GoPro(args.data, clips["num_frame"], crop)
        loader = DataLoader(data, batch, shuffle=True, num_workers=clips["dataloader_num_workers"], drop_last=True)
    else:
        loader = DataLoader(RandomClips(clips["num_frame"], crop, length=64 * batch), batch)

    step = args.start
    while step < steps:
        for clip in loader:
            if step == train["fix_iter"]:
                network.requires_grad_(True)
            blurred, sharp = clip["L"].cuda(), clip["H"].cuda()
            restored = network(blurred)
            loss = train["G_lossfn_weight"] * charbonnier(restored, sharp, train["G_charbonnier_eps"])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 200 == 0:
                print(f"iteration {step}: loss {loss.item():.4f}")
            if step == steps:
                break


if __name__ == "__main__":
    main()
