"""Real trainers, each in a folder with checkpoints of last week: they keep one, delete the others, and resume."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn


def hugging_face() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=128, n_positions=16, bos_token_id=1, eos_token_id=1)
    ids = torch.randint(0, 100, (16,))
    data = [{"input_ids": ids, "labels": ids} for _ in range(32)]

    def trainer(steps: int) -> Trainer:
        arguments = TrainingArguments(
            "hf", max_steps=steps, save_steps=1, save_total_limit=1, logging_steps=1, report_to=[], disable_tqdm=True,
            per_device_train_batch_size=2,
        )  # fmt: skip
        return Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data)

    trainer(2).train()
    kept = sorted(name for name in os.listdir("hf") if name.startswith("checkpoint-"))
    assert kept == ["checkpoint-2"], kept
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= set(os.listdir("hf/checkpoint-2"))
    assert os.path.getsize("hf/checkpoint-2/optimizer.pt") > 2 * 4 * 16_000
    again = trainer(3)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 3
    again.save_model("hf/final")
    assert "model.safetensors" in os.listdir("hf/final")


def lightning() -> None:
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(256, 256)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    def trainer(steps: int) -> L.Trainer:
        saving = ModelCheckpoint(
            "pl", save_last=True, save_top_k=1, every_n_train_steps=1, enable_version_counter=False
        )
        return L.Trainer(
            max_steps=steps, accelerator="gpu", devices=1, callbacks=[saving], logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir="pl",
        )  # fmt: skip

    loader = torch.utils.data.DataLoader(torch.randn(32, 256), batch_size=4)
    first = trainer(2)
    first.fit(Net(), loader)
    assert os.path.getsize("pl/last.ckpt") > 3 * 256 * 256 * 4, "weights and two moments"
    first.save_checkpoint("pl/by-hand.ckpt")
    second = trainer(3)
    second.fit(Net(), loader, ckpt_path="pl/last.ckpt")
    assert second.global_step == 3
    loaded = Net.load_from_checkpoint("pl/by-hand.ckpt")
    assert loaded.net.weight.shape == (256, 256)


def accelerated() -> None:
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    accelerator = Accelerator(
        project_config=ProjectConfiguration("acc", automatic_checkpoint_naming=True, total_limit=1)
    )
    net = nn.Linear(256, 256)
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    for _ in range(2):
        accelerator.backward(net(torch.randn(2, 256, device=accelerator.device)).sum())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state()
    kept = os.listdir("acc/checkpoints")
    assert kept == ["checkpoint_1"], kept
    accelerator.load_state("acc/checkpoints/checkpoint_1")


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    for function in (hugging_face, lightning, accelerated):
        try:
            function()
        except ImportError as error:
            print("absent:", error, file=sys.__stderr__)
            continue
        print(f"{function.__name__}: done", file=sys.__stderr__)
    assert Path("hf").is_dir()
