"""A script with Hugging Face's Trainer, as people write it: a model folder, then TrainingArguments as flags."""

from __future__ import annotations

import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

LENGTH = 128


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 1000, (LENGTH,))
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


if __name__ == "__main__":
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[2:])
    config = AutoConfig.from_pretrained(sys.argv[1])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    Trainer(model=model, args=args, train_dataset=Tokens()).train()
