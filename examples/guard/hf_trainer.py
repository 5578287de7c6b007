"""Hugging Face's Trainer: one line in front of train(), or a callback.

python examples/guard/hf_trainer.py --gpu rtx-4090
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import vramcast

LENGTH = 16


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 100, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--gpu", help="check against this card instead of what is free here")
    parser.add_argument("--callback", action="store_true", help="check when training begins instead of before")
    args = parser.parse_args()

    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=LENGTH, bos_token_id=0, eos_token_id=0
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=args.batch, max_steps=args.steps, report_to=[],
            save_strategy="no", disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        callbacks = [vramcast.guard.VramcastCallback(gpu=args.gpu)] if args.callback else []
        trainer = Trainer(model=GPT2LMHeadModel(config), args=settings, train_dataset=Tokens(), callbacks=callbacks)
        if not args.callback:
            vramcast.guard(trainer, gpu=args.gpu, fallbacks=["micro-batch", "checkpointing"])
        trainer.train()
    print(f"trained with batch {trainer.args.per_device_train_batch_size} for {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
