"""Fine-tune a language model with LoRA adapters (peft): bf16 base, fp32 adapters, AdamW."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
LINEAR_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load_base(folder: Path) -> torch.nn.Module:
    """The model with its weights, or with random ones where the folder holds only its configuration."""
    if any(folder.glob("*.safetensors")):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)


def batches(tokens: Path | None, vocabulary: int, batch: int, length: int) -> Iterator[Tensor]:
    """Pieces of a file of 16-bit token ids, or random ones."""
    ids = np.memmap(tokens, dtype=np.uint16, mode="r") if tokens else None
    while True:
        if ids is None:
            yield torch.randint(0, vocabulary, (batch, length))
        else:
            starts = np.random.randint(0, len(ids) - length, batch)
            yield torch.stack([torch.from_numpy(ids[start : start + length].astype(np.int64)) for start in starts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=HERE / "Llama-2-7b", help="folder with a config.json")
    parser.add_argument("--tokens", type=Path, help="file of 16-bit token ids; random tokens when left out")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--checkpointing", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    base = load_base(args.model)
    base.config.use_cache = False
    if args.checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()
    lora = LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.05, target_modules=LINEAR_LAYERS, task_type="CAUSAL_LM"
    )
    model = get_peft_model(base, lora).cuda().train()
    model.print_trainable_parameters()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)

    stream = batches(args.tokens, base.config.vocab_size, args.batch, args.length)
    for step in range(args.steps):
        tokens = next(stream).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
