"""Seq2SeqTrainer: groups by length, evaluation with generate() during training, the best checkpoint loaded again."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BartConfig, BartForConditionalGeneration, Seq2SeqTrainer, Seq2SeqTrainingArguments

torch.manual_seed(0)


class Pairs(Dataset):
    def __init__(self, n, seed):
        draw = torch.Generator().manual_seed(seed)
        self.rows = [
            torch.randint(4, 8000, (int(torch.randint(16, 160, (), generator=draw)),), generator=draw) for _ in range(n)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i][: len(self.rows[i]) // 2]}


def collate(rows):
    pad = lambda key, value: torch.nn.utils.rnn.pad_sequence([r[key] for r in rows], True, value)
    ids = pad("input_ids", 1)
    return {"input_ids": ids, "attention_mask": (ids != 1).long(), "labels": pad("labels", -100)}


config = BartConfig(
    vocab_size=8000, d_model=512, encoder_layers=4, decoder_layers=4, encoder_ffn_dim=2048, decoder_ffn_dim=2048,
    encoder_attention_heads=8, decoder_attention_heads=8, max_position_embeddings=256, forced_eos_token_id=2,
)  # fmt: skip
model = BartForConditionalGeneration(config)
model.generation_config.max_length = None
arguments = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(), per_device_train_batch_size=16, per_device_eval_batch_size=32, max_steps=6, bf16=True,
    eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3, load_best_model_at_end=True,
    predict_with_generate=True, generation_max_length=20, generation_num_beams=2, gradient_accumulation_steps=2,
)  # fmt: skip
trainer = Seq2SeqTrainer(
    model, arguments, data_collator=collate, train_dataset=Pairs(256, 1), eval_dataset=Pairs(64, 2)
)
trainer.train()
print(trainer.evaluate()["eval_loss"])
