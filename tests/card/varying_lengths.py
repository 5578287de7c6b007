"""Batches of varying length, with evaluation in between, accumulation, or layers that are unfrozen late: run on a card
to record its levels after each step, and on a virtual one to compare (measured_curves.json)."""

import json
import random
import sys

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(1)
torch.manual_seed(1)


class Texts(Dataset):
    def __init__(self, n, longest):
        self.lengths = [random.randint(8, longest) for _ in range(n)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return torch.full((self.lengths[i],), i % 1000, dtype=torch.long)


def collate(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


kind = sys.argv[1]
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=8000)).cuda()
if kind == "unfreeze":
    for p in model.parameters():
        p.requires_grad_(False)
    for p in model.transformer.ln_f.parameters():
        p.requires_grad_(True)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
train = DataLoader(Texts(240, 400), batch_size=4, collate_fn=collate)
dev = DataLoader(Texts(16, 900), batch_size=4, collate_fn=collate)
every = 4 if kind == "accumulate" else 1
rows = []
for step, ids in enumerate(train):
    if kind == "unfreeze" and step == 20:
        for p in model.transformer.h[-2:].parameters():
            p.requires_grad_(True)
    if kind == "unfreeze" and step == 40:
        for p in model.parameters():
            p.requires_grad_(True)
    ids = ids.cuda()
    loss = model(ids, labels=ids).loss / every
    loss.backward()
    if (step + 1) % every == 0:
        opt.step()
        rows.append([torch.cuda.memory_reserved(), torch.cuda.memory_allocated()])
        opt.zero_grad()
    if kind == "evaluate" and step % 20 == 19:
        model.eval()
        with torch.no_grad():
            for ids in dev:
                ids = ids.cuda()
                model(ids, labels=ids)
        model.train()
if len(sys.argv) > 2:
    with open(sys.argv[2], "w") as file:
        json.dump(rows, file)
