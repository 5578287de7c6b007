"""torchtune's table of techniques: its own recipe on one A100, at the commit that brought the table."""

from __future__ import annotations

from pathlib import Path

from lab.published import checkouts
from lab.published.recipe import NoRecipe, Recipe

TORCHTUNE, REVISION = "pytorch/torchtune", "1814feb17"
SCRIPT = Path(__file__).with_name("tune_script.py")
HERE = "lab.published.tune_script"
COMMON = f"""
tokenizer._component_={HERE}.tokenizer dataset._component_={HERE}.Packed dataset.packed=True
checkpointer._component_={HERE}.Checkpointer metric_logger._component_={HERE}.Logger
optimizer._component_=torch.optim.AdamW compile=True tokenizer.max_seq_len=4096
loss._component_=torchtune.modules.loss.CEWithChunkedOutputLoss enable_activation_offloading=False
"""
STEPS = {
    "cumulative: +chunked cross entropy": "enable_activation_checkpointing=False optimizer_in_bwd=False",
    "cumulative: +activation checkpointing": "enable_activation_checkpointing=True optimizer_in_bwd=False",
    "cumulative: +optimizer in backward": "enable_activation_checkpointing=True optimizer_in_bwd=True",
}
"""Each line of the table adds a technique to those above it."""


def recipe(row: dict[str, str]) -> Recipe:
    if row["notes"] not in STEPS:
        raise NoRecipe(f"{row['notes']}: not written down")
    source = checkouts.checkout(TORCHTUNE, REVISION)
    config = source / "recipes" / "configs" / "llama3_2" / "3B_full_single_device.yaml"
    program = source / "recipes" / "full_finetune_single_device.py"
    settings = [*COMMON.split(), *STEPS[row["notes"]].split(), f"batch_size={row['micro_batch']}"]
    return Recipe(
        program=str(SCRIPT),
        arguments=[str(source), str(program), "--config", str(config), *settings],
        gpu="a100-sxm4-80gb",
        cards=1,
        cards_per_node=1,
        ranks=(0,),
        assumed="an A100 of 80 GB; AdamW of torch, as the line of 8-bit AdamW comes later",
    )
