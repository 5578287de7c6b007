"""Lengths that rise with noise, under a limit in MiB: says the step in which memory ran out (measured_curves.json)."""

import random
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(2)
torch.manual_seed(2)
limit = int(sys.argv[1]) << 20
torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=8000)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
step = 0
try:
    for step in range(1, 80):
        ids = torch.zeros(4, 40 + 8 * step + random.randint(0, 60), dtype=torch.long, device="cuda")
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
except torch.OutOfMemoryError:
    print("out of memory in step", step, "reserved", torch.cuda.max_memory_reserved(), flush=True)
