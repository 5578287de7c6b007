"""torchao's table of low-bit optimizers: its benchmark fine-tunes a ViT-H of timm's on one card."""

from __future__ import annotations

from pathlib import Path

from lab.published import checkouts
from lab.published.recipe import NoRecipe, Recipe

TORCHAO, REVISION = "pytorch/ao", "36027d82d1"
SCRIPT = Path(__file__).with_name("adam_script.py")
OPTIMIZERS = {"AdamW fused": "AdamW", "ao 8-bit": "AdamW8bitAo", "ao FP8 E4M3": "AdamWFp8Ao", "ao 4-bit": "AdamW4bitAo"}
SETTINGS = "--model timm/vit_huge_patch14_224.orig_in21k --amp bf16 --compile --n_epochs 1 --n_workers 0"
"""What the table's heading says: BF16 AMP, compiled model, one epoch, cosine schedule, fixed seed."""


def recipe(row: dict[str, str]) -> Recipe:
    optimizer = OPTIMIZERS.get(row["optimizer"])
    if optimizer is None:
        raise NoRecipe(f"{row['optimizer']} is not in torchao's benchmark")
    program = checkouts.checkout(TORCHAO, REVISION) / "benchmarks" / "benchmark_low_bit_adam.py"
    options = ["--batch_size", row["micro_batch"], "--optim", optimizer, "--cosine_lr_scheduler", "--seed", "2024"]
    return Recipe(
        program=str(SCRIPT),
        arguments=[str(program), *SETTINGS.split(), *options],
        gpu="rtx-4070-ti-super",
        cards=1,
        cards_per_node=1,
        ranks=(0,),
    )
