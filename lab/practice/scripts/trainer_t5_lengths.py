"""T5 with the Trainer: sources and targets of varying lengths, grouped by length, bf16, a linear schedule."""

import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration


class Pairs(Dataset):
    def __init__(self, count, vocabulary):
        draw = random.Random(0)
        self.rows = [
            {
                "input_ids": [draw.randrange(5, vocabulary) for _ in range(draw.randrange(40, 700))],
                "labels": [draw.randrange(5, vocabulary) for _ in range(draw.randrange(10, 120))],
            }
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    def padded(name, value):
        longest = max(len(row[name]) for row in rows)
        longest = (longest + 7) // 8 * 8
        return torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])

    ids = padded("input_ids", 0)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": padded("labels", -100)}


config = T5Config(
    vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0
)
arguments = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    gradient_accumulation_steps=2,
    max_steps=6,
    learning_rate=3e-4,
    bf16=True,
    report_to=[],
    save_strategy="no",
    logging_steps=2,
    dataloader_num_workers=0,
    seed=3,
)
trainer = Seq2SeqTrainer(
    model=T5ForConditionalGeneration(config), args=arguments, train_dataset=Pairs(400, 32128), data_collator=collate
)
print(trainer.train().training_loss)
